package fairness

import (
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"hyperkube/components/apiserver/request"
)

// Plain limits the number of concurrent requests regardless of their user, with upstream's
// --max-requests-inflight and --max-mutating-requests-inflight. It is used when API Priority and
// Fairness is disabled.
type Plain struct {
	reading, writing chan struct{}
}

// NewPlain returns a Plain that admits the given numbers of concurrent reading and writing
// requests. Zero means no limit.
func NewPlain(reading, writing int) *Plain {
	p := &Plain{}
	if reading > 0 {
		p.reading = make(chan struct{}, reading)
	}
	if writing > 0 {
		p.writing = make(chan struct{}, writing)
	}
	return p
}

// Serve calls next, or responds with 429 if too many requests of the same kind, reading or writing, are in progress.
// A kind without a limit is never rejected, and neither are long-running requests and those of system:masters.
func (p *Plain) Serve(w http.ResponseWriter, req *http.Request, info *apirequest.RequestInfo, u user.Info, next http.Handler) {
	seats := p.writing
	switch info.Verb {
	case "get", "list", "watch":
		seats = p.reading
	}
	if seats == nil || request.LongRunning(info) {
		next.ServeHTTP(w, req)
		return
	}
	select {
	case seats <- struct{}{}:
		defer func() { <-seats }()
	default:
		// Administrators must be able to use an overloaded server.
		if !slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
			TooMany(w, 1)
			return
		}
	}
	next.ServeHTTP(w, req)
}
