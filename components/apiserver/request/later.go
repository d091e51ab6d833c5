package request

import "net/http"

// Sender is a ResponseWriter whose request can be answered after it has given
// back what it was allowed to work with.
type Sender interface {
	// Later has send called once the request's seats are free, in the same
	// goroutine, at most once and before the request ends. Private is how many
	// bytes of memory the answer holds for itself.
	Later(private int, send func())
}

// SendLater has send called when the request's seats are free again: making an
// answer takes seats, waiting for a client to take it must not. Where nobody
// waits for seats send is called at once.
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
