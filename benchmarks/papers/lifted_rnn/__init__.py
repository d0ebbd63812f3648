"""Lifted Recurrent Neural Networks (2018), the four tables of section 6."""
