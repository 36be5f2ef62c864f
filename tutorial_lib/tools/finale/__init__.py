"""The scripted multi-machine run: machines, data, partition, training, predictions, scaling, report; step by step."""
