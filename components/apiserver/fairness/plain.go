package fairness

import (
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"hyperkube/components/apiserver/request"
)

// Plain limits how many requests are worked on at the same time, whoever sends
// them. It is what is left when fairness is off.
type Plain struct {
	reading, writing chan struct{}
}

// NewPlain makes a limiter of so many requests that read and that write; zero
// does not limit those.
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

// Serve calls next, or answers that there are too many requests.
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
		// Administrators must be able to help a server that is overrun.
		if !slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
			TooMany(w, 1)
			return
		}
	}
	next.ServeHTTP(w, req)
}
