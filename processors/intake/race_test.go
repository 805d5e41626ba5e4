//go:build race

package intake

func init() { underRace = true }
