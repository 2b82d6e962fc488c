#!/bin/sh
# The same with torchrun, on two machines: start it on both, with NODE_RANK=0 on node0 and 1 on the other.
export STRATAGEM_CLUSTER_SECRET_FILE="$HOME/.stratagem-secret"
exec torchrun --nnodes=2 --node-rank="$NODE_RANK" --nproc-per-node=2 \
    --master-addr=node0 --master-port=29500 --no-python \
    stratagem run --task=by-rank --chief --workers=2 --ps=1 train.py
