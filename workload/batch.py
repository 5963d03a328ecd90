"""Entry point for Spark on a cluster or the service; takes the arguments of `workload preprocess`.

spark-submit --py-files workload.zip batch.py gs://BUCKET/books.toml --set output.shards=256
"""

import sys

from workload.__main__ import main

if __name__ == "__main__":
    sys.exit(main(["preprocess", *sys.argv[1:]]))
