"""Which rows are valid."""

from measured import row
import pytest

from experiments.rows import FIELDS, schema


def test_every_field_is_described():
  for name, field in FIELDS.items():
    assert name.isidentifier() and field.meaning and field.kind.name
  required = {name for name, field in FIELDS.items() if field.required}
  assert required == {*row()} - {"versions", "commit"}
  assert {*schema.SHARED} | {*schema.MEASURED} == {*FIELDS}
  assert not {*schema.SHARED} & {*schema.MEASURED}


@pytest.mark.parametrize(
  "change",
  [
    *({"seed": x} for x in ("0", None, 1.5, True, [0], -1)),
    *({"metrics": x} for x in (None, 3, [1], {"loss": "low"})),
    *({"study": x} for x in (None, "", "../x", "/x", "..", "a\\b", 3)),
    *({"bins": x} for x in (3, {"count": 3}, {"count": ["x"]})),
    *({"members": x} for x in (3, [-1], [0.5])),
    {"method": {}},
    {"scaled": {"loss": [1]}},
    {"settings": 3},
    {"config": "x"},
    {"commit": None},
    {"wall_time": "x"},
  ],
)
def test_values_that_are_not_valid(change):
  assert schema.problem(row()) is None
  ((name, value),) = change.items()
  wrong = schema.problem(row() | change)
  assert wrong and wrong.startswith(f"its {name} is {value!r}, expected ")
  less = row()
  if less.pop(name, None) and FIELDS[name].required:
    assert schema.problem(less) == f"it has no {name}"


def test_rows_of_another_form():
  assert schema.problem([]) == "it is []"
  wrong = schema.problem(row(optimizer="sgd"))
  assert wrong and wrong.startswith("it has 'optimizer', which is not one of")
