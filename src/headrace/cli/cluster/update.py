"""`headrace cluster update`: new weights of a model, replica by replica."""

from __future__ import annotations

from headrace.cli.cluster.replace import OfModel, replace_replicas
from headrace.cli.flags import takes_settings
from headrace.cli.terminal import JsonFlag
from headrace.config.settings import Settings

HELP = """Take new weights of a model from its files, replica by replica. No request fails: replies that have
begun end with the old weights, however long they take. Put the new files at the model's path first, for
example by changing a symbolic link. The tokenizer and the chat template must be the same. Where the server
has keys this needs one with the scope admin.

\b
Example:
  ln -sfn models/v2 models/current; headrace cluster update --model current
"""


@takes_settings("host", "port", "api_key", "admin_api_key")
def command(
    model: OfModel = None,
    json: JsonFlag = False,
    *,
    settings: Settings,
) -> None:
    """Update it."""
    replace_replicas(settings, "update", model, "replaced by ones with the new weights", json=json)
