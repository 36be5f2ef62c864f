#!/bin/bash
#SBATCH --job-name=night
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=8:00:00
#SBATCH --output=scripts/out/16/night.log
#SBATCH --signal=B:TERM@120

export OMP_NUM_THREADS=1
#SBATCH --requeue

files=scripts/out/16
start=$files/night-$SLURM_JOB_ID
saved=/dev/shm/night-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}.pt
parts="--part_config $files/parts-2/synthetic-products.json --ip_config $start.txt"
python -m tutorial_lib launch --slurm --out $start $parts \
    "python3 scripts/train.py --graph_name synthetic-products $parts --checkpoint $saved --num_epochs 500"
