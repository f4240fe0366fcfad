"""`headrace.Data`: SQL over datasets from Python."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from headrace.config.extras import ExtraMissing
from headrace.config.settings import default_cache_dir
from headrace.config.sources import load_settings, read_file
from headrace.data.engine import AiWishes, DataEngine, Parameter
from headrace.data.indexing import index_dataset
from headrace.data.job import CallCost, SqlAnswer
from headrace.errors import UsageError
from headrace.inference.local_models import LocalModels
from headrace.search.client import SearchClient
from headrace.search.indexes import indexes_of
from headrace.search.ingest import IngestReport
from headrace.search.searching import NamedHit

if TYPE_CHECKING:
    from headrace.engine.client import LoadedModel


class HasModel(Protocol):
    """An `LLM`."""

    @property
    def model(self) -> LoadedModel:
        """The loaded model."""
        ...


def _require(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        raise ExtraMissing(f"this needs {library}, which is not installed: pip install {library}")


class Rows:
    """The rows of a statement: `arrow()`, `pandas()`, `polars()`, `rows()`. `usage` is what models have done
    for it (None without functions that they answer), `warnings` what is to be known of that."""

    def __init__(self, answer: SqlAnswer) -> None:
        self._answer = answer
        self.usage, self.warnings = answer.usage, answer.warnings

    def arrow(self) -> Any:
        """A pyarrow.Table."""
        pyarrow = importlib.import_module("pyarrow")
        return pyarrow.ipc.open_stream(self._answer.body).read_all()

    def pandas(self) -> Any:
        """A pandas.DataFrame; ExtraMissing without pandas."""
        _require("pandas")
        return self.arrow().to_pandas()

    def polars(self) -> Any:
        """A polars.DataFrame; ExtraMissing without polars."""
        _require("polars")
        return importlib.import_module("polars").from_arrow(self.arrow())

    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each row."""
        return self.arrow().to_pylist()

    def __len__(self) -> int:
        return self._answer.rows


class Data:
    """Datasets of a headrace.toml (None: the nearest one), or given ones. Ends with `close` or `with`."""

    def __init__(
        self,
        file: str | Path | None = None,
        *,
        datasets: Mapping[str, object] | None = None,
        sql: Mapping[str, object] | None = None,
        llm: HasModel | Sequence[HasModel] = (),
    ) -> None:
        """`datasets` and `sql` are as the tables of that name; a dataset may be just its `from`. Functions
        such as ai() are answered by `llm`, one `LLM` or several, and by shipped models, which are loaded when
        a statement first needs them.

        Raises UsageError for what is wrong in them, ExtraMissing without `headrace[data]`.
        """
        cache = default_cache_dir()
        self._usd_per_hour = load_settings().node_usd_per_hour
        self._search: SearchClient | None = None
        if datasets is None:
            if file is not None:
                if not Path(file).is_file():
                    raise UsageError(f"{file} is no file: name a headrace.toml, or give datasets")
                content = read_file(Path(file))
                datasets, sql = content.get("datasets"), sql or content.get("sql")
            else:
                settings = load_settings()
                datasets, sql, cache = settings.datasets, sql or settings.sql, settings.cache_folder
        self._engine = DataEngine(datasets, sql, cache)
        self._indexes = indexes_of(load_settings())
        given = [llm] if not isinstance(llm, Sequence) else llm
        self._models = LocalModels([one.model for one in given])

    def sql(
        self,
        sql: str,
        parameters: Sequence[Parameter] = (),
        *,
        role: str | None = None,
        max_tokens: int | None = None,
        max_ai_rows: int | None = None,
        max_cost: float | None = None,
    ) -> Rows:
        """The rows of a SELECT. `parameters` stand for its ? or $1. With `role` only what that may read. Of
        models it takes at most `max_tokens`, for `max_ai_rows` rows of arguments that are not known
        yet, and `max_cost` dollars of this machine's time (`node_usd_per_hour` of the settings).

        Raises StatementRefused, SqlFailed, SqlLimit or SourceDown.
        """
        wishes = AiWishes(
            max_tokens=max_tokens,
            max_ai_rows=max_ai_rows,
            max_cost=max_cost,
            usd_per_hour=self._usd_per_hour,
        )
        answer = self._engine.sql(
            sql,
            parameters,
            ruled=role is not None,
            role=role,
            models=self._models,
            wishes=wishes,
            indexes=self._indexes,
        )
        return Rows(answer)

    def explain(self, sql: str, parameters: Sequence[Parameter] = ()) -> str:
        """How a SELECT would be run."""
        return "\n".join(str(row["explain_value"]) for row in Rows(self._explained(sql, parameters)).rows())

    def costs(self, sql: str, parameters: Sequence[Parameter] = ()) -> list[CallCost]:
        """What the functions of a SELECT would take of models, before anything is computed."""
        return list(self._explained(sql, parameters).costs)

    def _explained(self, sql: str, parameters: Sequence[Parameter]) -> SqlAnswer:
        wishes = AiWishes(usd_per_hour=self._usd_per_hour)
        return self._engine.sql(
            sql, parameters, ruled=False, explain=True, models=self._models, wishes=wishes
        )

    def search(
        self,
        text: str,
        indexes: Sequence[str] | None = None,
        *,
        where: str | None = None,
        limit: int = 10,
        rerank: str | None = None,
        keywords: Sequence[str] = (),
    ) -> list[NamedHit]:
        """The best chunks for a text, of indexes that `headrace ingest` has made (None: of all): each has
        `index`, `generation` and `hit` (`key`, `title`, `attributes`, `text`, `span`, `score`, ranks).

        `where` is a condition on attributes, `rerank` the name of a reranker, `keywords` must be in a hit.
        Raises IndexMissing and InvalidRequest.
        """
        return self._searcher().search(
            text, indexes, where=where, limit=limit, rerank=rerank, keywords=keywords
        )

    def index(self, name: str) -> IngestReport:
        """Bring the index of a dataset (`[datasets.NAME.index]`) up to date: rows that are new or have
        changed since are embedded, those that are gone are removed. Raises InvalidRequest where there is no
        index, or a key is there twice."""
        return index_dataset(self._engine, self._searcher(), name)

    def _searcher(self) -> SearchClient:
        if self._search is None:
            self._search = SearchClient(load_settings(), models=self._models)
        return self._search

    def datasets(self) -> list[str]:
        """The names of the datasets."""
        return [dataset.name for dataset in self._engine.catalogue]

    def refresh(self, name: str) -> int:
        """Make the local copy of a dataset anew; returns its rows."""
        return self._engine.copies.refresh(self._engine.catalogue.find(name, ruled=False))

    def close(self) -> None:
        """End the process that runs statements, and models that were loaded for them and for searches."""
        self._engine.close()
        self._indexes.close()
        self._models.close()
        if self._search is not None:
            self._search.close()
            self._search = None

    def __enter__(self) -> Data:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
