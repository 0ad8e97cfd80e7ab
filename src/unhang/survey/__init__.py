"""What stands in an environment, in whole: searched, judged, tried and planned. The commands begin here."""
