"""What the experiment scripts share: a config flag in, one clear sentence out when it is wrong."""

import sys
from collections.abc import Callable
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from orqa_jax.cli import start_logging
from orqa_jax.errors import OrqaError, explain_refusal
from orqa_jax.train.config import make_config
from orqa_jax.train.mesh import start_processes


def run_experiment(config_class: Any, function: Callable[[Any], Any]) -> None:
    """Calls ``function`` with what ``--config=FILE --config.key=value`` says."""
    config = config_flags.DEFINE_config_file("config", None, "Python file with get_config().")
    flags.mark_flag_as_required("config")

    def main(_: list[str]) -> None:
        start_logging()
        try:
            start_processes()
            function(make_config(config_class, config.value.to_dict()))
        except OrqaError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
        except KeyboardInterrupt:
            print("error: interrupted; the same command continues where it can.", file=sys.stderr)
            sys.exit(130)
        except Exception as error:
            refusal = explain_refusal(error, lower="the sizes in the config file")
            if refusal is None:
                raise
            print(f"error: {refusal}", file=sys.stderr)
            sys.exit(2)

    app.run(main)
