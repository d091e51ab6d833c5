package metrics

import (
	"sync/atomic"

	"hyperkube/internal/base/broadcast"
)

// Switch is a condition that is on or off. The zero Switch is off. It is safe for concurrent use.
type Switch struct {
	on      atomic.Bool
	changed broadcast.Broadcast
}

// Set turns the switch on or off.
func (s *Switch) Set(on bool) {
	if s.on.Swap(on) != on {
		s.changed.Send()
	}
}

// isOn reports whether the switch is on.
func (s *Switch) isOn() bool { return s.on.Load() }

// next returns a channel that is closed at the next change.
func (s *Switch) next() <-chan struct{} { return s.changed.Next() }
