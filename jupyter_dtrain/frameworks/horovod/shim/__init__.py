"""The stand-in for ``horovod.torch`` over ``torch.distributed``, where Horovod is not installed."""
