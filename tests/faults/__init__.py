"""The campaign of faults: `make test-faults`.

Studies that are killed, interrupted, damaged and out of disk end in the bits of
one that was left alone; whatever is damaged or hostile is refused, in little
time and memory; and no input of the readers ends in a traceback.
"""
