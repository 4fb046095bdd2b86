"""The pages: current, and true to the rows, which are read here anew."""

import dataclasses
import html
import json
import re
import types

import numpy as np
import pytest
import scipy.stats

from experiments import __main__ as command
from experiments import config, datasets, report, rows
from experiments.fields import ConfigError
from experiments.report import build, query
from experiments.report.compare import Comparisons
from experiments.report.query import LABELS, Results
from experiments.report.render import PAPER
from experiments.rows import RowsError, kept
from experiments.studies import extended, schedules, table1, wide
from experiments.studies.no_temperature_tuning import TUNING

from .reading import by_metric, change_text, check_comparison, paired, tables
from .reading import corrupted as hard_sets

ROOT = build.ROOT


@pytest.fixture(scope="module")
def pages(ask):
  return dict(build.make_kept(ask, kept.FOLDER))


def test_kept_pages_are_current(pages, ask):
  advice = "run `python -m experiments report`"
  shown = set()
  for name, page in pages.items():
    path = kept.FOLDER / f"{name}.md"
    assert path.read_text("utf-8") == page.markdown + "\n", advice
    shown |= set(re.findall(r"\]\(([^/)]*?\.png)\)", page.markdown))
  drawn = {f"{name}.png" for name in pages["README"].drawings}
  assert shown == drawn  # every picture that can be drawn is shown
  rows_of = {path.name for path in kept.FOLDER.glob("*.jsonl.gz")}
  there = {path.name for path in kept.FOLDER.glob("[!.]*")}
  kept_pages = {f"{name}.md" for name in pages}
  assert there == kept_pages | shown | rows_of | {"SHA256SUMS"}


def test_a_broken_study_is_not_left_out(tmp_path, monkeypatch):
  def broken(name):
    raise ConfigError(f"{name} is broken.")

  monkeypatch.setattr(config, "load_study", broken)
  with pytest.raises(ConfigError, match="is broken"):
    list(build.write_pages(tmp_path / "pages"))
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", build.WITH_BLOCKS)
def test_blocks_are_current(name, ask):
  text = (ROOT / name).read_text("utf-8")
  assert "<!-- from rows: " in text
  assert build.fill(ROOT / name, ask) == text, "python -m experiments report"


def headings(text):
  """As GitHub names them in links."""
  titles = re.findall(r"^#+ (.*)$", text, re.M)
  plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
  return {title.replace(" ", "-") for title in plain}


def check_links(text, folder, others=()):
  for link in re.findall(r"\[[^]]*\]\((?!http)(.*?)\)", text):
    file, _, anchor = link.partition("#")
    if file in others or file.endswith(".png"):
      continue
    target = folder / file if file else None
    assert target is None or target.exists(), link
    if anchor:
      its = target.read_text("utf-8") if target else text
      assert anchor in headings(its), link


@pytest.mark.parametrize(
  "name",
  ["README", "replication", "replication_appendix", *build.WITH_BLOCKS],
)
def test_links_lead_somewhere(name):
  path = ROOT / name if name.endswith(".md") else kept.FOLDER / f"{name}.md"
  check_links(path.read_text("utf-8"), path.parent)


# The answer.


def lines_of_the_answer(page):
  ((_, *lines),) = [
    [row for row in block.splitlines() if row.startswith("| ")]
    for block in page.markdown.split("\n\n")
    if block.startswith("| ⊥Grad minus")
  ]
  cells = [[x.strip() for x in line[2:-2].split(" | ")] for line in lines]
  return {re.sub(r"\[(.*)\]\(.*", r"\1", it[0]): it[1:] for it in cells}


def test_the_answer_fits_a_screen(pages):
  text = pages["README"].markdown
  prose = [it for it in text.split("\n\n") if not it.startswith("|")]
  words = re.sub(r"\]\([^)]*\)", "]", " ".join(prose))
  count = len(words.split())
  assert count <= 200, f"answer.md has {count} words: shorten another sentence"
  assert text.count("![") == 1 and text.count("\n|---|") == 1


def test_the_table_of_the_answer(pages, runs, ask):
  """Every difference and advice of the answer, by NumPy and from the rows."""
  lines = lines_of_the_answer(pages["README"])
  situations = LABELS["situations"]
  complete = [it for it in situations if ask.is_complete(situations[it][0])]
  others = [*lines][len(complete) :]
  assert [*lines] == complete + others
  assert all(label.startswith("text, ") for label in others)  # test_language
  for label in complete:
    name, *pair = situations[label]
    study = query.config.load_study(
      query.POOLS.get(name, {}).get("study", name)
    )
    files = query.POOLS.get(name, {}).get("files") or kept.sharing(study)
    result, it = runs(*files), types.SimpleNamespace(STUDY=study)
    seeds = sorted(
      {key[2] for key in result.rows if key[0] == study.config.hash}
    )
    has = lambda seed, result=result, study=study, pair=pair: all(
      (study.config.hash, method, seed, study.config.epochs, "clean")
      in result.rows
      for method in pair
    )
    seeds = [seed for seed in seeds if has(seed)]
    use, *cells = lines[label]
    key = study.config.hash, pair[0], seeds[0], study.config.epochs, "clean"
    both = "scaled_crossed", "scaled_half"  # an old row lacks the first
    after = next(it for it in both if it in result.rows[key])
    ensembles = " ensembles" * ("ensemble" in pair[0])
    assert cells[4] == f"{len(seeds)}{ensembles}", label
    said = []
    for cell, metric, part in zip(
      cells[:4],
      ("loss", "ece", "loss", "ece"),
      ("metrics", "metrics", after, after),
      strict=True,
    ):
      a, b = result(it, metric, seeds, part=part, pair=pair)
      change, low, high, p = paired(a, b)
      digits = 3 if metric == "loss" else 4
      assert cell.rstrip("*") == f"{change:+.{digits}f}", label
      assert p < 0.05 or not cell.endswith("*")  # adjusting adds no star
      small = max(-low, high) < 0.03 * np.mean(a)
      if cell.endswith("*"):
        said.append("small" if small else "helps" if change < 0 else "harms")
      else:
        said.append("same" if small else "undecided")
    helps = [it == "helps" for it in said[::2]]  # the loss, without T and after
    advice = {
      (True, True): "yes",
      (True, False): "only without T",
      (False, True): "only with T",
      (False, False): "not shown" if said[::2] == ["undecided"] * 2 else "no",
    }
    assert use == advice[*helps], label


def test_the_sentences_of_the_answer(pages, runs):
  text = " ".join(pages["README"].markdown.split())
  result = runs("schedules", "ensembles")
  pair, seeds = ("cosine", "orthograd_cosine"), [*range(100, 110)]
  seeds += range(300, 325)
  after = result(schedules, "loss", seeds, part="scaled_half", pair=pair)
  change, low, high, p = paired(*after)
  assert p < 0.05 and 0 < low < high < 0.03 * np.mean(after[0])
  assert f"⊥Grad changes the loss after T by {change:+.3f} (" in text
  assert "nats (harms, but by less than matters)" in text
  assert round(p, 3) == 0.002 and f"{change:.4f}" == "0.0075"
  change, low, high, _ = paired(*result(schedules, "top1", seeds, pair=pair))
  assert f"accuracy by {change:+.2f} ({low:+.2f}, {high:+.2f}) points" in text
  pilots = runs("pilot_optimizers").rows.values()
  value = lambda method, metric: np.mean(
    [row["metrics"][metric] for row in rows_of(pilots, method)]
  )
  both = {row["method"] for row in pilots if "orthograd" not in row["method"]}
  both = [it for it in both if rows_of(pilots, f"orthograd_{it}")]
  signs = {
    it: {
      np.sign(value(f"orthograd_{it}", metric) - value(it, metric))
      for metric in ("loss", "ece")
    }
    for it in both
  }
  weak = {
    it
    for it in both
    if it.endswith(("_0.05",))
    or it == "lion_0.0001_0.5"
    or it == "lion_0.0003_0.5"
  }
  assert len(weak) == len(both) - len(weak) == 6
  assert all(signs[it] == ({-1} if it in weak else {1}) for it in both)
  assert (
    "loss and ECE fall at weaker decay (6 of 6), rise at stronger (6 of 6)."
  ) in text
  assert "- **AdamW, Lion, Muon:** worse when tuned. " in text
  lines = lines_of_the_answer(pages["README"])
  for name in ("AdamW", "Lion", "Muon"):
    use, *cells = lines[f"{name}, tuned"]
    assert use == "no"  # worse by the loss, without T and after T
    assert all(re.fullmatch(r"\+.*\*", cell) for cell in cells[:4:2])
  contest = [*runs("no_temperature").rows.values()]
  means = [
    np.mean([row["metrics"][metric] for row in rows_of(contest, method)])
    for method in ("sam", "sgd", "orthograd")
    for metric in ("loss", "ece")
  ]
  words = (
    "- **You can’t fit T:** use SAM (two gradients a step), tuned: loss {:.3f}"
    ", ECE {:.4f}. Tuned SGD has {:.3f}, {:.4f}; ⊥Grad {:.3f}, {:.4f}. "
  )
  assert words.format(*means) in text
  readme = " ".join((ROOT / "README.md").read_text("utf-8").split())
  assert words.format(*means) in readme


def of_the_map(runs):
  """Means without and with ⊥Grad, of T geometric ones, by rate and decay."""
  rows, cells = [*runs("map").rows.values()], {}
  for method in query.config.load_study("map").methods:
    pair = method.name, f"orthograd_{method.name}"
    if not method.strength:
      its = [[x["metrics"] for x in rows_of(rows, name)] for name in pair]
      assert [len(x) for x in its] == [3, 3]
      cells[method.learning_rate, method.weight_decay] = {
        "T": [scipy.stats.gmean([x["temperature"] for x in y]) for y in its],
        "loss": [np.mean([x["loss"] for x in y]) for y in its],
        "top1": [np.mean([x["top1"] for x in y]) for y in its],
        "change": np.array(
          [a["loss"] - b["loss"] for b, a in zip(*its, strict=True)]
        ),
      }
  return cells


def test_the_map_of_rates_and_decays(runs, ask):
  """Its page, by SciPy and from the rows."""
  page, _ = build.make_study(ask, "map", ROOT / "docs" / "studies")
  text = " ".join(page.markdown.split())
  cells = of_the_map(runs)
  decayed = {key: it for key, it in cells.items() if key[1]}
  with_t = [it["T"][1] for it in decayed.values()]
  correlation = scipy.stats.spearmanr([a * b for a, b in decayed], with_t)[0]
  assert f"It is {correlation:+.2f}, over 16 settings" in text
  assert correlation < -0.8 and "**Rule of thumb, confirmed:" in text
  acts = [
    it["loss"][1] < it["loss"][0]
    for it in cells.values()
    if it["T"][0] > 1.5 and 0.8 < it["T"][1] < 1.5
  ]
  assert (
    all(acts) and f"The loss is lower in {len(acts)} of {len(acts)}" in text
  )
  stuck = {key: it for key, it in cells.items() if it["top1"][0] < 20}
  learned = decayed.keys() - stuck.keys()
  own = scipy.stats.spearmanr([(b, cells[a, b]["T"][0]) for a, b in learned])[0]
  alone = [
    scipy.stats.spearmanr(x, with_t)[0] for x in zip(*decayed, strict=True)
  ]
  least = min(cells[key]["T"][0] for key in learned)
  words = f"T is {alone[1]:+.2f}, and the learning rate’s {alone[0]:+.2f}."
  assert words in text
  words = (
    f"({own:+.2f} at the {len(learned)} settings with decay where SGD learns)"
  )
  assert f"{words}, but only to {least:.1f}." in text
  assert f"⊥Grad’s falls to {min(with_t):.2f}." in text
  for (rate, decay), it in cells.items():
    plain = "–" if (rate, decay) in stuck else f"{it['T'][0]:.2f}"
    line = next(
      x
      for x in page.markdown.splitlines()
      if x[:20].startswith(f"| rate {rate:g} |")
    )
    column = 2 + [0, 1e-4, 5e-4, 2e-3, 8e-3].index(decay)
    assert line.split("|")[column].strip() == f"{plain} / {it['T'][1]:.2f}"
  lost = max(it["top1"][1] for key, it in cells.items() if key[1] == 8e-3)
  plain = [cells[rate, 8e-3]["top1"][0] for rate in (0.03, 0.1)]
  words = f"accuracy is {lost:.0f} % at most. SGD has {plain[0]:.0f} % at rate"
  assert f"{words} 0.03, and {plain[1]:.0f} % at 0.1." in text
  most = max(it["top1"][1] for it in stuck.values())
  words = f"chance at {len(stuck)} settings. ⊥Grad’s accuracy there is"
  assert f"{words} {most:.0f} % at most" in text
  ps = {
    key: scipy.stats.ttest_1samp(it["change"], 0).pvalue
    for key, it in cells.items()
  }
  signs, running = {}, 0.0
  for i, key in enumerate(sorted(ps, key=ps.get)):
    running = max(running, (len(ps) - i) * ps[key])  # Holm
    signs[key] = np.sign(cells[key]["change"].mean()) * (running < 0.05)
  helps, harms = ({k for k in signs if signs[k] == s} for s in (-1, 1))
  assert (
    f"at {len(helps)} of 20 settings, and raises it at {len(harms)}" in text
  )
  few = len(helps & stuck.keys())
  words = (
    f"helps at {len(helps)} of 20 settings (at {few} of these, SGD learns "
    f"nothing), harms at {len(harms)}; "
    f"{20 - len(helps) - len(harms)} undecided."
  )
  for name in ("README.md", "experiments/results/README.md"):
    assert words in " ".join((ROOT / name).read_text("utf-8").split())


def test_the_pages_of_wrong_labels(pages, runs, ask):
  names = "label_noise", "label_noise_without_t"
  markdown = [
    build.make_study(ask, it, ROOT / "docs")[0].markdown for it in names
  ]
  text, without_t = (" ".join(it.split()) for it in markdown)
  lines = lines_of_the_answer(pages["README"])
  for name, page in zip(names, markdown, strict=True):
    (label,) = (it for it, of in LABELS["situations"].items() if of[0] == name)
    (cell,) = re.findall(r"\| ECE after T \| ([^|]*) \|\n", page)
    assert lines[label][4] == cell[:7] + "*" * cell.endswith("*")  # adjusted
  rows = [*runs(*names).rows.values()]
  methods = "sgd_after_t", "orthograd_after_t", "sgd", "orthograd"
  seeds = range(510, 520)
  of = {it: {row["seed"]: row for row in rows_of(rows, it)} for it in methods}
  of = {it: [of[it][seed] for seed in seeds] for it in of}
  keys = "learning_rate", "weight_decay", "strength"
  chosen = [[of[it][0]["settings"][key] for key in keys] for it in methods]
  assert chosen[0] == chosen[2] == [0.3, 0.002, 0]
  assert chosen[1::2] == [[0.3, 0.002, 1], [0.03, 0.002, 1]]
  assert [it["metrics"] for it in of["sgd"]] == [
    it["metrics"] for it in of["sgd_after_t"]
  ]
  get = lambda it, key: np.array([row["metrics"][key] for row in of[it]])
  less = [(get(it, "top1") < 60).sum() for it in methods[:2]]
  words = f"{less[0]} of SGD’s and {less[1]} of ⊥Grad’s 10 end below 60 %"
  assert words in text
  crossed = lambda its: np.mean([it["scaled_crossed"]["loss"] for it in its])
  tuning = [*runs("label_noise_tuning").rows.values()]
  first = "sgd_0.3_0.002", "orthograd_0.3_0.002_1"
  before = [crossed(rows_of(tuning, it)) for it in first]
  assert f"was {before[0]:.3f} without ⊥Grad and {before[1]:.3f} with" in text
  other = crossed(of["orthograd"])
  assert other < crossed(of["orthograd_after_t"])
  assert f"⊥Grad at the setting chosen without T has {other:.3f} here" in text
  lower = (get("sgd", "loss") < get("orthograd", "loss")).sum()
  assert f"SGD’s loss is lower in {lower} of 10 seeds" in without_t
  assert f"from {less[0]} runs that end below 60 % accuracy" in without_t
  least = get("orthograd", "top1").min()
  assert f"⊥Grad’s lowest accuracy is {least:.1f} %." in without_t


def test_the_page_of_the_contest_without_t(runs, ask):
  """Who beats ⊥Grad, and what is said beyond the rule."""
  page = build.make_study(ask, "no_temperature", ROOT / "docs")[0].markdown
  text, study = " ".join(page.split()), ask.study("no_temperature")
  rows = [*runs("no_temperature", *study.arms).rows.values()]
  of = {it: rows_of(rows, it) for it in study.method_names}
  for arm in study.arms:  # at the T of each seed
    of[arm] = [
      row | {"metrics": row["metrics"] | row["scaled_own"]}
      for row in rows
      if row["study"] == arm and row["dataset"] == "clean"
    ]
  get = lambda it, key="loss", part="metrics": np.array(
    [row[part][key] for row in sorted(of[it], key=lambda row: row["seed"])]
  )
  losses = {it: get(it) for it in of}
  assert {len(x) for x in losses.values()} == {10}
  own = losses.pop("orthograd")
  tests = {it: paired(x, own) for it, x in losses.items()}
  beats, running = {}, 0.0
  for i, it in enumerate(sorted(tests, key=lambda it: tests[it][3])):
    change, low, high, p = tests[it]
    running = max(running, (len(tests) - i) * p)  # Holm
    matters = max(-low, high) >= 0.03 * losses[it].mean()
    beats[it] = np.sign(change) * (running < 0.05 and matters)
  better = {it for it in beats if beats[it] > 0}
  assert {it for it in beats if beats[it] < 0} == {"logit_norm"}
  assert beats["adamw"] == 0 and len(better) == 9
  assert min(better, key=lambda it: losses[it].mean()) == "sam"
  said = text.partition("Lower losses than ⊥Grad’s: ")[2].partition(" - ")[0]
  for it in better:
    change, low, high, _ = tests[it]
    words = f"{query.method_name(it)}, {change:+.3f} ({low:+.3f}, {high:+.3f})"
    assert words in said
  assert said.count("(") == len(better)
  ece = get("cross_validated", "ece").mean()
  after = [
    get(it, part="scaled_crossed").mean()
    for it in ("sgd", "cross_validated", "sam", "orthograd")
  ]
  loss = losses["cross_validated"].mean()
  assert f"SGD has loss {loss:.3f} and ECE {ece:.4f}. With T fitted on" in text
  assert f"the same networks have loss {after[1]:.3f}." in text
  words = (
    "SAM has the lowest loss, too:** {:.3f}; SGD has {:.3f}, ⊥Grad {:.3f}."
  )
  assert words.format(after[2], after[0], after[3]) in text
  assert f"After T, SGD has {after[0]:.3f} at the setting that was" in text
  assert f"and {after[1]:.3f} at the one that was chosen after T." in text
  alone = study.method_names
  assert after[2] == min(get(it, part="scaled_crossed").mean() for it in alone)
  low, high = paired(get("sgd", "top1"), get("cross_validated", "top1"))[1:3]
  assert f"({low:+.2f}, {high:+.2f}) points." in text and high < 0
  most = max(alone, key=lambda it: get(it, "top1").mean())
  assert f"accuracy of all, {get(most, 'top1').mean():.2f} %." in text
  others = [it for it in alone if it != "sam"]
  assert most == min(others, key=lambda it: get(it).mean()) == "muon"
  hard = lambda it, key: np.mean(
    [
      row["metrics"][key]
      for row in rows
      if row["method"] == it and "/" in row["dataset"]
    ]
  )
  assert 100 * hard("sam", "max_softmax") > hard("sam", "top1") + 10
  eces = [hard(it, "ece") for it in ("sam", "mixup", "sgd", "orthograd")]
  words = "its ECE is {:.4f}; mixup’s is {:.4f}, SGD’s {:.4f}, ⊥Grad’s {:.4f}."
  assert words.format(*eces) in text
  worst = {it: hard(it, "loss") for it in alone}
  assert min(worst, key=lambda it: worst[it]) == "mixup"
  words = "without T, {mixup:.3f}; SAM has {sam:.3f}, ⊥Grad {orthograd:.3f}."
  assert words.format(**worst) in text
  page = [*runs("methods").rows.values()]
  before = [
    np.mean([row["metrics"][key] for row in rows_of(page, "sam")])
    for key in ("loss", "ece")
  ]
  assert "SAM has loss {:.3f} and ECE {:.4f} without T".format(*before) in text
  ends = []
  for name, grid in TUNING.grids.items():
    (method,) = TUNING.chosen("loss", name)
    values = [[y for y in x if y is not None] for x in grid.ladders.values()]
    its = [getattr(method, knob) for knob in grid.ladders]
    knobs = zip(grid.ladders, its, values, strict=True)
    if any(
      x in (tried[0], tried[-1]) and (knob, x) != ("strength", 1.0)
      for knob, x, tried in knobs
    ):
      ends.append(query.method_name(name))
  assert f"- {', '.join(ends[:-1])} and {ends[-1]} are best at an end" in text
  assert "⊥Grad" not in ends


def test_the_page_of_ensembles_of_the_same_images(runs, ask):
  page = build.make_study(ask, "same_images", ROOT / "docs")[0].markdown
  tested = ask.tested("same_images")
  text, rows = " ".join(page.split()), [*runs("same_images").rows.values()]
  names = "sgd_after_t", "orthograd_after_t"
  get = lambda it, key, part="scaled_crossed": np.array(
    [x[part][key] for x in sorted(rows_of(rows, it), key=lambda x: x["seed"])]
  )
  both = [f"{it} ensemble of 5" for it in names]
  without, ours = (get(it, "loss") for it in both)
  change, low, high, p = paired(without, ours)
  assert p > 0.05 and max(-low, high) < 0.03 * without.mean()
  assert (
    f"**No difference that matters**: after T, the loss of ensembles is "
    f"{ours.mean():.3f} with ⊥Grad and {without.mean():.3f} without, "
    f"{change:+.3f} ({low:+.3f}, {high:+.3f}). There are {len(ours)} "
  ) in text
  raw = [get(it, "loss", "metrics") for it in both]
  change, low, high, p = paired(*raw)
  assert p < 0.05 < tested["loss"][tuple(both)].adjusted
  words = (
    f"{change:+.3f} ({low:+.3f}, {high:+.3f}) (adjusted p 0.051: undecided)"
  )
  assert f"Without T, the loss changes by {words}, and ECE by" in text
  before = [get(it, "loss", "scaled_members").mean() for it in both]
  ece = [get(it, "ece", "scaled_members").mean() for it in both]
  eces = [get(it, "ece").mean() for it in both]
  gap = [
    get(it, "top1", "metrics").mean()
    - 100 * get(it, "max_softmax", "scaled_members").mean()
    for it in both
  ]
  assert (
    f"ECE is then {eces[1]:.4f} with ⊥Grad and {eces[0]:.4f} without. With T "
    f"fitted to each network, before averaging, it is {ece[1]:.4f} and "
    f"{ece[0]:.4f}, because the average is underconfident: its confidence is "
    f"{gap[1]:.1f} and {gap[0]:.1f} points below its accuracy. The loss is "
    f"{before[1]:.3f} and {before[0]:.3f}."
  ) in text
  for part in ("scaled_crossed", "metrics"):
    its = (get(it, "loss", part) for it in names)
    change, low, high, _ = paired(*its)
    assert f"by {change:+.3f} ({low:+.3f}, {high:+.3f})" in text
  keys = "learning_rate", "weight_decay", "strength"
  settings = [rows_of(rows, it)[0]["settings"] for it in names]
  chosen = [[its[key] for key in keys] for its in settings]
  assert chosen == [[0.1, 0.002, 0.0], [0.1, 0.002, 0.5]]
  assert "rate 0.1 and decay 2e-3, and ⊥Grad has strength ½." in text
  other = ask.study("ensembles")
  (strong,) = (it.resolve(other.config) for it in other.methods if it.strength)
  assert [getattr(strong, key) for key in keys] == [0.3, 5e-4, 1.0]
  assert "learning rate 0.3, weight decay 5e-4, strength 1." in text
  assert "which train on the same images. " in text


@pytest.mark.parametrize(
  ("name", "first"),
  [
    ("methods", "without corrupted accuracy, %, ECE after T, "),
    ("corruption_confirmation", "without ECE after T, "),  # its primary one
    ("no_temperature", None),  # The second edition tests all.
  ],
)
def test_what_a_page_does_not_test(ask, name, first):
  text = build.make_study(ask, name, ROOT / "docs")[0].markdown
  cells = "Holm’s adjustment for all cells of this table"
  assert f"{cells}, {first}" in text if first else f"{cells}. The" in text
  assert ("which are not tested" in text) == (first is not None)


def rows_of(result, method):
  return [
    row
    for row in result
    if row["method"] == method and row["dataset"] == "clean"
  ]


# The replication.


REPLICATED = ("table1", "confirmation", "corruption", "renormalization")


@pytest.mark.parametrize(
  ("title", "study", "files", "seeds", "metrics"),
  [
    ("Table 1", table1, REPLICATED, range(40), 12),
    ("WRN-28-10, 100", wide, ("wide", "wide_confirmation"), range(10), 9),
  ],
)
def test_beside_the_paper(pages, runs, title, study, files, seeds, metrics):
  lines = by_metric(tables(pages["replication"], title)[0])
  assert len(lines) == metrics
  result = runs(*files)
  names = [*lines]
  family = {it: result(study, it, seeds) for it in LABELS["metrics"]}
  if metrics == 12:
    check_comparison(lines, family)
  else:
    check_comparison(lines, {it: family[it] for it in names}, family)
  for metric, cells in lines.items():
    theirs = PAPER["table_1" if metrics == 12 else "wide"][metric]
    assert cells["paper"] == f"{theirs['sgd']} / {theirs['orthograd']}"


def test_under_corruption(pages, runs):
  result = runs("corruption", "corruption_confirmation")
  hard = hard_sets(result.rows.values())
  assert len(hard) == 75
  lines = by_metric(tables(pages["replication"], "CIFAR-10-C: ResNet-18")[0])
  values = {it: result(table1, it, range(40), hard) for it in lines}
  check_comparison(lines, values)


def test_first_lines_of_the_replication(pages, runs):
  text = pages["replication"].markdown.partition("\n## ")[0]
  result = runs(*REPLICATED, "wide", "wide_confirmation", "extended")
  for words, digits, *of in (
    ("max logit {},", 2, table1, "max_logit", range(40)),
    ("a slightly lower loss, {},", 3, table1, "loss", range(40)),
    ("ECE, {}, at", 4, table1, "ece", range(40)),
  ):
    change = change_text(*result(*of), f"{0:.{digits}f}", star=False)
    assert words.format(change) in text
  for words, digits, *of in (
    ("scaling**: loss {}.", 3, table1, "loss", range(40)),
    ("*worse* after T: loss {}", 3, wide, "loss", range(10)),
    ("ECE is worse after T, too, {}", 4, extended, "ece", range(5)),
  ):
    values = result(*of, part="scaled_half")
    change = change_text(*values, f"{0:.{digits}f}", star=False)
    assert words.format(change) in text


# Pages of studies.


def made(seeds=6):
  """Rows of a study with two pairs: the second is lower by 0.1, or equal."""
  noise = np.random.default_rng(0).normal(scale=0.002, size=(seeds, 5))
  losses = {"sgd": 0.8, "orthograd": 0.7} | dict.fromkeys(
    ("cosine", "orthograd_cosine"), 0.6
  )
  sets = [f"{x}/{i}" for x in datasets.CORRUPTIONS for i in range(1, 6)]
  for seed in range(seeds):
    for i, (name, loss) in enumerate(losses.items()):
      loss += 0.05 * seed + float(noise[seed, i])
      metrics = dict.fromkeys(
        ("loss", "ece", "brier", "wrong_confidence"), loss
      )
      for dataset in ("train", "clean", *sets):
        yield {
          "study": "schedules",
          "method": name,
          "seed": 100 + seed,
          "epoch": 100,
          "dataset": dataset,
          "metrics": metrics | {"top1": 80.0 + float(noise[seed, i])},
          "scaled_half": {"loss": loss},
          "scaled_clean": {"loss": 2 * loss},
          "bins": {k: [0.5] * 10 for k in ("count", "confidence", "accuracy")},
          "config_hash": schedules.STUDY.config.hash,
          "time": "2026-11-17T00:00:00",
          "wall_time": 60.0,
          "device": "1 × H200",
          "versions": {"jax": "0.0"},
          "precision": "bfloat16",
          "commit": "abc",
        }


def page_of(its, study=schedules.STUDY):
  result = Results(its, study.config)
  ask = Comparisons({study.name: (study, result)})
  return build.make_study(ask, study.name, ROOT / "docs" / "studies")[0]


def test_page_of_a_planned_study():
  page = page_of(made(seeds=10))
  text = page.markdown
  assert "**If you fit a temperature, you don’t need it.**" in text
  rows = [
    line for line in text.splitlines() if line.startswith("| ⊥Grad − SGD")
  ]
  assert rows[0].startswith("| ⊥Grad − SGD | helps | ") and "-0.1" in rows[0]
  assert set(page.figures) == {
    "schedules_differences",
    "schedules_reliability",
  }
  after_t, without = page.figures["schedules_differences"].axes
  assert "loss after T, nats" in after_t.get_xlabel()
  assert "loss without T, nats" in without.get_xlabel()
  assert "1-schedules" in text  # a link to the plan, not a copy
  assert "**Question.**" not in text


def test_only_what_is_planned_has_the_plan():
  changed = schedules.STUDY.override(["methods=sgd,orthograd"])
  text = page_of(made(), changed).markdown
  assert "don’t need it" not in text and "PLAN.md" not in text
  assert "**⊥Grad lowers ECE from 0.92" in text
  assert "No significant difference in accuracy.**" in text
  assert "run schedules --set methods=sgd,orthograd`: " in text
  assert "| on the test set | SGD → ⊥Grad | difference |" in text


def test_ensembles_are_not_called_seeds():
  its = [
    row
    if row["seed"] > 100
    else row | {"method": f"{row['method']} ensemble of 5"}
    for row in made()
  ]
  text = page_of(its).markdown.partition("## Ensembles")[2]
  assert "Described, not tested." in text
  assert "| ⊥Grad, cosine, ensemble of 5 | 1 | 0.60" in text


def write_named(folder, name, change=lambda row: row):
  """Writes a folder of a study with a name, with two epochs of its rows."""
  it = dataclasses.replace(schedules.STUDY, name=name, evaluate_every=50)
  folder.mkdir()
  (folder / "study.json").write_text(json.dumps(dataclasses.asdict(it)))
  rows.write(
    folder / "rows.jsonl",
    [
      change(row | {"study": name, "epoch": epoch})
      for row in made(seeds=2)
      if "/" not in row["dataset"]
      for epoch in (50, 100)
    ],
  )
  return folder


@pytest.mark.parametrize("name", ["a](b)% <b>|$x$ größe"])
def test_names_of_studies(tmp_path, name):
  """Pictures are found, whatever Markdown makes of a name in a link."""
  folder = write_named(tmp_path / "study", name)
  report.write_study(folder)
  page = (folder / "report.html").read_text("utf-8")
  assert page.count("<svg") == page.count("<figcaption>") == 3
  assert f"<title>{html.escape(name)}" in page and "<b>" not in page
  assert not re.findall(r'(?:src|href)="(?!#)', page)  # needs no other file
  assert "⊥Grad" in report.show(folder)


@pytest.mark.parametrize(
  "part", [pytest.param("metrics", marks=pytest.mark.slow), "scaled_half"]
)
def test_null_numbers(tmp_path, part):
  """Rows have null for a number that is not finite; it is left out."""

  def change(row):
    first = row["method"] == "sgd" and row["seed"] == 100
    return row | {part: row[part] | {"loss": None}} if first else row

  folder = write_named(tmp_path / "study", "nulls", change)
  text = report.show(folder)
  assert ("loss after T" in text) == (part != "scaled_half")
  if part == "scaled_half":
    with pytest.raises(RowsError, match="each with loss after T"):
      report.write_study(folder)
  else:
    report.write_study(folder)


def test_a_diverged_run_is_named(tmp_path):
  change = lambda row: (
    row | {"dataset": "diverged", "metrics": {}, "epoch": 7}
    if (row["method"], row["seed"], row["dataset"]) == ("sgd", 100, "train")
    and row["epoch"] == 50
    else row
  )
  folder = write_named(tmp_path / "study", "lost", change)
  assert "sgd, seed 100: diverged in epoch 7" in report.show(folder)
  report.write_study(folder)
  page = (folder / "report.html").read_text("utf-8")
  assert "<strong>Diverged</strong>" in page


@pytest.mark.slow
def test_pages_of_all_studies(tmp_path, capsys, monkeypatch):
  folder = tmp_path / "new"
  arguments = ["experiments", "report", "--output", str(folder)]
  monkeypatch.setattr("sys.argv", arguments)
  command.main()
  said = capsys.readouterr().out
  written = {path.name for path in folder.glob("*.md")}
  assert len(written) >= 16 and "grokking.md" in written
  for name in written:
    assert f"Wrote {folder / name}.\n" in said
    text = (folder / name).read_text("utf-8")
    check_links(text, folder, written)
    for picture in re.findall(r"\]\(([^/)]*?\.png)\)", text):
      assert (folder / picture).stat().st_size > 5_000


# The second edition, with rows that are made up here.


def second(name, losses, temperatures=None, extra=None, lost=()):
  """Rows of a study whose methods have such losses, after T a tenth less."""
  study = query.config.load_study(name)
  rng = np.random.default_rng(1)
  temperatures = temperatures or {}
  for method, loss in losses.items():
    for seed in range(study.first_seed, study.first_seed + study.seeds):
      row = {
        "study": name,
        "method": method,
        "seed": seed,
        "epoch": study.config.epochs,
        "config_hash": study.config.hash,
        "time": "2026-11-17T00:00:00",
        "wall_time": 60.0,
        "device": "1 × H200",
        "versions": {"jax": "0.0"},
        "commit": "abc",
      }
      if (method, seed) in lost:
        yield row | {"dataset": "diverged", "metrics": {}}
        continue
      here = loss + float(rng.normal(scale=0.004))
      after = {"loss": 0.9 * here, "ece": 0.03}
      row |= {
        "metrics": {
          "loss": here,
          "ece": 0.1 * here,
          "top1": 75.0,
          "temperature": temperatures.get(method, 1.5),
        },
        "scaled_half": after | {"loss": 9.0},
        "scaled_crossed": after,
        "bins": {k: [0.5] * 10 for k in ("count", "confidence", "accuracy")},
      }
      for images in ("train", "clean"):
        yield row | (extra or {}) | {"dataset": images}


def asked(**its):
  """Comparisons of studies with such rows, as if each were complete."""
  own = {}
  for name, result in its.items():
    study = query.config.load_study(name)
    own[name] = study, Results(result, study.config)
  ask = Comparisons(own)
  kept_ones = ask.is_complete
  ask.is_complete = lambda name: name in own or kept_ones(name)
  ask.is_planned = lambda name: name in query.planned()
  return ask


OTHERS = (
  *("sgd", "label_smoothing", "focal", "mixup", "sam", "average"),
  *("logit_norm", "muon", "adamw"),
)


def of_no_temperature(monkeypatch, lost=(), **changes):
  """Its page, with names as after tuning, and the arms."""
  study = query.config.load_study("no_temperature")
  arms = ("held_out_temperature", "cross_validated")
  named = tuple(
    dataclasses.replace(it, name=it.name.removesuffix("_untuned"))
    for it in study.methods
  )
  tuned = dataclasses.replace(
    study,
    methods=named,
    pairs=tuple((name, "orthograd") for name in (*OTHERS, *arms)),
  )
  load = query.config.load_study
  monkeypatch.setattr(
    *(query.config, "load_study"),
    lambda name: tuned if name == "no_temperature" else load(name),
  )
  losses = dict.fromkeys((*OTHERS, *arms), 0.7) | {"orthograd": 0.6} | changes
  ask = asked(no_temperature=second("no_temperature", losses, lost=lost))
  ask.is_complete = lambda name: False  # The conclusion is of the kept rows.
  page, _ = build.make_study(ask, "no_temperature", ROOT / "docs" / "studies")
  return ask, page


def test_a_contest_with_arms(monkeypatch):
  lost = [("adamw", seed) for seed in range(400, 409)]
  changes = {"logit_norm": 9.0, "mixup": 0.55, "focal": 0.592}
  ask, page = of_no_temperature(monkeypatch, lost, **changes)
  assert "**Diverged**, and so left out of the comparisons: AdamW" in (
    page.markdown
  )
  tested = ask.tested("no_temperature")["loss"]
  assert len(tested) == 10
  p = [row.p for row in tested.values()]
  least = min(tested.values(), key=lambda row: row.p)
  assert least.adjusted == pytest.approx(11 * min(p))  # all that are planned
  arm = tested["cross_validated", "orthograd"]
  assert arm.verdict == "⊥Grad is better" and arm.old_verdict == ""
  assert arm.margin == 0.03 * np.mean(arm.a)
  verdicts = {pair[0]: row.verdict for pair, row in tested.items()}
  assert verdicts["mixup"] == "mixup is better"
  assert verdicts["focal"] == "focal loss is better, but by less than matters"
  assert verdicts["sgd"] == "helps"
  (axis,) = page.figures["no_temperature_differences"].axes
  assert axis.get_xlim()[0] > -1.0  # LogitNorm's −8.4 is an arrow at the edge
  assert "the first is better" in axis.get_xlabel()


@pytest.mark.parametrize("slope", [-0.5, 0.0])
def test_the_rule_of_thumb_of_map(slope):
  study = query.config.load_study("map")
  losses, temperatures = {}, {}
  for method in study.methods:
    decay = method.learning_rate * method.weight_decay
    t = 1.2 * (max(decay, 1e-6) / 1e-4) ** slope if method.strength else 2.5
    temperatures[method.name] = t * (1 + method.learning_rate / 1000)
    losses[method.name] = 0.5 if method.strength else 0.7
  lost = [("sgd_1_0.008", seed) for seed in (600, 601, 602)]
  ask = asked(map=second("map", losses, temperatures, lost=lost))
  page, _ = build.make_study(ask, "map", ROOT / "docs" / "studies")
  text = page.markdown
  decays = [
    (m.learning_rate * m.weight_decay, temperatures[m.name])
    for m in study.methods
    if m.strength and m.weight_decay and m.name != "orthograd_sgd_1_0.008"
  ]
  assert len(decays) == 15
  correlation = scipy.stats.spearmanr(decays)[0]
  assert f"It is {correlation:+.2f}, over 15 settings" in text
  assert ("**Rule of thumb, confirmed" in text) == (slope < 0)
  assert ("**The rule of thumb is not confirmed**" in text) == (slope == 0)
  assert (
    "Diverged" in text and "lowers the loss significantly at 19 of 19" in text
  )


def test_after_t_of_the_second_edition_is_of_all_images():
  result = Results(
    second("map", {"a": 0.5, "b": 0.6}), query.config.load_study("map").config
  )
  its = result.outcomes([("a", "b")], "loss")
  assert its == ["loss", "accuracy", "ece", "crossed_loss", "crossed_ece"]
  its = result.outcomes([("a", "b")], "scaled_loss")
  assert its == ["scaled_loss", "accuracy", "loss", "ece", "scaled_ece"]


def test_a_study_waits_for_its_arms():
  arm = query.config.load_study("held_out_temperature")
  study = dataclasses.replace(schedules.STUDY, arms=(arm.name,))
  its = Results(made(seeds=10), schedules.STUDY.config)
  none = arm, Results([], arm.config)
  complete = lambda of: Comparisons(
    {"schedules": (of, its), arm.name: none}
  ).is_complete("schedules")
  assert complete(schedules.STUDY) and not complete(study)
