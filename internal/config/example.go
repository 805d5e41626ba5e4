package config

import _ "embed" // for Example

// Example is a documented file with every setting.
//
//go:embed example.yaml
var Example string
