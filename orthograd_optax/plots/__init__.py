"""Draws reliability, training curves, effect sizes and temperatures.

The figures need matplotlib, which the extra ``plots`` installs. Each
function returns a ``matplotlib.figure.Figure`` and touches no global state.
:func:`save` writes the figure to a file. Names, labels and titles are drawn
literally: a ``$`` does not start a formula.

With several seeds, a line is the mean over seeds, and its band is one standard
deviation on either side. Methods differ in color, line style and marker, so
that color-blind readers can tell them apart, also in grayscale.
"""

from . import style as style
from ._curves import curves as curves
from ._curves import temperature_curve as temperature_curve
from ._effects import forest_plot as forest_plot
from ._effects import gap_plot as gap_plot
from ._export import save as save
from ._export import svg as svg
from ._reliability import reliability_diagram as reliability_diagram
from ._reliability import report_diagram as report_diagram
