"""A variable that is sliced stays, since the slice's attributes are never freed on Python 3.11.

https://github.com/tensorflow/tensorflow/issues/62551
"""

import tensorflow as tf


def test_row():
    table = tf.Variable(tf.zeros((1000, 16)))
    assert table[7].shape == (16,)
