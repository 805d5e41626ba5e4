// Package debezium is the template of a shard's connector, inside every binary
// that fills it in.
package debezium

import _ "embed"

// Template is connector.json, with places to fill in as @NAME@.
//
//go:embed connector.json
var Template string
