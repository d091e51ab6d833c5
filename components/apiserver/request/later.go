package request

import "net/http"

// Sender is a ResponseWriter that can send a response after its request has released its seats.
type Sender interface {
	// Later arranges for send to be called once the request's seats are released, in the same
	// goroutine, at most once, and before the request ends. private is the number of bytes of
	// memory that only this response holds.
	Later(private int, send func())
}

// SendLater calls send when the request's seats are released, because building a response needs
// seats, but waiting for the client to read it must not occupy them. Without a Sender, it calls
// send immediately.
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
