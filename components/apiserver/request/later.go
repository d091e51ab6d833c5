package request

import "net/http"

// Sender is a ResponseWriter that can send a response after the request has released its seats, the
// units in which API Priority and Fairness limits concurrent requests.
type Sender interface {
	// Later calls send once the request's seats are released, in the same goroutine, at most once,
	// and before the request is finished. private is the number of bytes of memory that only this
	// response uses.
	Later(private int, send func())
}

// SendLater calls send, which writes a response, when the request's API Priority and Fairness seats are released:
// encoding a response needs seats, but waiting for a slow client must not occupy them. private is the number of bytes
// of memory that only this response uses. If w does not support this, send is called immediately.
func SendLater(w http.ResponseWriter, private int, send func()) {
	for {
		if s, ok := w.(Sender); ok {
			s.Later(private, send)
			return
		}
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			send()
			return
		}
		w = u.Unwrap()
	}
}
