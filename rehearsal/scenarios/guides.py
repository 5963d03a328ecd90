"""The infrastructure guide as it is printed, from the first plan to the last `tpu down`.

docs/guides/infrastructure.md, command by command: plan, up with one question, status and logs, a
preemption, recover, a new bundle, a restart, down.
"""

from rehearsal.scenario import steps as step
from rehearsal.scenario.scenario import Scenario

SCENARIO = Scenario(
    clock=20,
    steps=(
        step.guide("docs/guides/infrastructure.md", sections=("2. Plan", "3. Up")),
        step.ready("tpu-dev"),
        step.reach("tiny", 20),
        step.guide("docs/guides/infrastructure.md", sections=("4. Watch",)).by("ml-engineer"),
        step.preempt("tpu-dev", "power-loss", run="tiny"),
        step.guide("docs/guides/infrastructure.md", sections=("5. Recover and update",)),
        step.ready("tpu-dev"),
        step.guide("docs/guides/infrastructure.md", sections=("6. Restart the job",)).by("ml-engineer"),
        step.done("tiny"),
        # A run writes its end, then its status and its lease; a worker's heartbeat says done after all of it.
        step.heartbeat("tpu-dev", 4, state="done"),
        step.remember("runs/", "bundles/"),
        step.guide("docs/guides/infrastructure.md", sections=("7. Down",)),
        step.survived(),
    ),
)
