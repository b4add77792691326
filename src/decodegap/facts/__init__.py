"""Sourced rows that ship with decodegap: models, devices and the reference study."""
