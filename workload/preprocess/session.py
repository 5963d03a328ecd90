"""Start of Spark with this job's settings; clear errors where it can't start."""

import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import workload
from workload.errors import RunError

JAVAS = ("/usr/lib/jvm/java-17-openjdk-amd64", "/usr/lib/jvm/java-17-openjdk-arm64", "/usr/lib/jvm/java-17")
_KNOWN = (8, 11, 17)  # Java versions supported by Spark 3.5
# A local Spark listens on loopback only, serves no pages, and has memory for the longest documents.
_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "3g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
# Java only moves bytes here: without its second compiler, 41 MB took a sixth less processor time.
_JAVA = "-XX:TieredStopAtLevel=1 -Dlog4j2.configurationFile=file:{}"
_SUBMITTED = {"PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS"}  # set by spark-submit
_LOGGING = Path(__file__).with_name("configs") / "log4j2.properties"


def begin(master: str, properties: Sequence[str], name: str) -> Any:
    """Start a SparkContext.

    Args:
        master: e.g. `local[4]`; empty: set by spark-submit or the service.
        properties: of Spark, `key=value`.
        name: of the application.

    Raises:
        RunError: no Spark, no supported Java, no master, or one thread by default.
    """
    try:
        from pyspark import SparkConf, SparkContext
    except ModuleNotFoundError:
        fix = 'in a checkout: "$(tools/setup.sh spark | tail -n 1)" -m workload preprocess …'
        raise RunError(f"this Python has no pyspark\n    fix: {fix}") from None
    _find_java()
    root = str(Path(workload.__file__).parents[1])
    path = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path))
    if not master and not _SUBMITTED & os.environ.keys():
        raise RunError(
            "Spark has no master\n    fix: --local, --master local[4], or start it by spark-submit"
        )
    if not master:  # spark-submit and the service set it in the JVM alone
        SparkContext._ensure_initialized()
    conf = SparkConf().setAppName(name)
    if master:
        conf.setMaster(master)
    if not conf.contains("spark.master"):
        raise RunError(
            "Spark has no master\n    fix: --local, --master local[4], or start it by spark-submit"
        )
    if conf.get("spark.master").startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        conf.setIfMissing("spark.driver.extraJavaOptions", _JAVA.format(_LOGGING))
        for key, value in _LOCAL.items():
            conf.setIfMissing(key, value)
    for setting in properties:
        key, equals, value = setting.partition("=")
        if not equals or not key.startswith("spark."):
            raise RunError(f"--conf {setting}: must be spark.KEY=VALUE\n    fix: e.g. spark.speculation=true")
        conf.set(key, value)
    context = SparkContext(conf=conf)
    if threading.current_thread() is threading.main_thread():
        # Spark's own handler would call Java from within the interrupted call to Java, which fails.
        signal.signal(signal.SIGINT, _interrupted)
    if context.defaultParallelism < 2 and not master:
        problem = f"Spark's master is {context.master!r}, of one thread, by default"
        context.stop()
        fix = (
            "--master local[N] for all cores of this machine; runtime 3.0 of the service sets local by itself"
        )
        raise RunError(f"{problem}\n    fix: {fix}")
    return context


def _interrupted(number: int, frame: object) -> None:
    logging.disable()  # or py4j logs the interrupted call
    raise KeyboardInterrupt


def _find_java() -> None:
    """Set JAVA_HOME to Java 17 if it is installed beside another one."""
    home = next((folder for folder in JAVAS if Path(folder, "bin", "java").is_file()), None)
    if home and "JAVA_HOME" not in os.environ:
        os.environ["JAVA_HOME"] = home
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else shutil.which("java")
    fix = "apt-get install openjdk-17-jre-headless"
    if not java or not Path(java).is_file():
        raise RunError(f"Spark needs Java 17, and none is installed\n    fix: {fix}")
    shown = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(?:1\.)?(\d+)', shown)
    if not version or int(version[1]) not in _KNOWN:
        version_text = version[1] if version else shown.strip()[:80]
        raise RunError(
            f"{java}: is Java {version_text}; Spark 3.5 runs on 17\n    fix: {fix}, and set JAVA_HOME"
        )
