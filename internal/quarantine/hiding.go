package quarantine

import "github.com/tidemark/tidemark/topology"

// CheckHiding refuses a change that hides a relation by nobody known, without a
// reason, or in a state that is not counted.
func CheckHiding(state topology.State, h topology.Hiding) *Refusal {
	if err := h.Check(); err != nil {
		return Refuse(InvalidHiding, "%v", err)
	}
	if h.By != topology.Shown && state != state.Kind().Active() {
		return Refuse(InvalidHiding, "a relation in state %s is hidden", state)
	}
	return nil
}
