#!/bin/bash
#SBATCH --job-name=sage
#SBATCH --partition=main
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=10
#SBATCH --output=scripts/out/16/%j.log
#SBATCH --open-mode=append
#SBATCH --requeue

files=scripts/out/16
start=$files/$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}
parts="--part_config $files/parts-2/synthetic-products.json --ip_config $start.txt"
echo "start ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST"

exec python -m tutorial_lib launch --slurm --out $start --num_omp_threads 1 $parts \
    "python3 scripts/train.py --graph_name synthetic-products $parts --checkpoint $files/$SLURM_JOB_ID.pt $*"
