#!/bin/bash
#SBATCH --job-name=night
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=8:00:00
#SBATCH --output=scripts/out/16/night.log
#SBATCH --signal=USR1@120

export OMP_NUM_THREADS=1
#SBATCH --requeue

checkpoint=/dev/shm/night-$SLURM_JOB_ID.pt
trap 'scontrol requeue $SLURM_JOB_ID' USR1
srun --kill-on-bad-exit python3 scripts/long.py --checkpoint $checkpoint --num_epochs 500
