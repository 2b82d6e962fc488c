#!/bin/sh
# A chief, two workers and a parameter server, by rank. The secret is in a file that every machine has.
export STRATAGEM_CLUSTER_SECRET_FILE="$HOME/.stratagem-secret"
exec mpirun -n 4 -x STRATAGEM_CLUSTER_SECRET_FILE \
    stratagem run --task=by-rank --chief --workers=2 --ps=1 train.py
