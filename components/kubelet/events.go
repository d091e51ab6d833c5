package kubelet

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
)

// limitedSink is an EventSink that limits the rate of events.
type limitedSink struct {
	record.EventSink
	limit flowcontrol.RateLimiter
}

func (s *limitedSink) Create(e *v1.Event) (*v1.Event, error) {
	s.limit.Accept()
	return s.EventSink.Create(e)
}

func (s *limitedSink) Update(e *v1.Event) (*v1.Event, error) {
	s.limit.Accept()
	return s.EventSink.Update(e)
}

func (s *limitedSink) Patch(old *v1.Event, data []byte) (*v1.Event, error) {
	s.limit.Accept()
	return s.EventSink.Patch(old, data)
}
