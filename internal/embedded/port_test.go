package embedded

import "testing"

// Of two servers that were given the same port the one that starts second ends.
func TestFreePortGivesNoneTwice(t *testing.T) {
	seen := map[int]bool{}
	for range 300 {
		port, err := FreePort()
		if err != nil {
			t.Fatal(err)
		}
		if seen[port] || port < firstPort || port > lastPort {
			t.Fatalf("port %d: given before %v", port, seen[port])
		}
		seen[port] = true
	}
}
