package filters

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

var creating = &apirequest.RequestInfo{IsResourceRequest: true, Verb: "create", Resource: "pods"}

func post(body io.Reader) *http.Request {
	req := httptest.NewRequest(http.MethodPost, "/", body)
	req.ContentLength = -1
	return req
}

// TestBodies checks that a slow client only uses up its own share.
func TestBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s userLimits
		bad, good := &user.DefaultInfo{Name: "bad"}, &user.DefaultInfo{Name: "good"}
		var ends []io.Closer
		for range maxWaiting {
			r, w := io.Pipe()
			ends = append(ends, w)
			go func() {
				if begun, ok := s.readAhead(httptest.NewRecorder(), post(r), creating, bad); ok {
					begun()
					begun()
				}
			}()
		}
		synctest.Wait()
		r, end := io.Pipe()
		defer end.Close()
		w := httptest.NewRecorder()
		if _, ok := s.readAhead(w, post(r), creating, bad); ok || w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
			t.Errorf("one too many: %v, %d", ok, w.Code)
		}
		if _, ok := s.readAhead(httptest.NewRecorder(), post(http.NoBody), creating, good); !ok {
			t.Error("another user was rejected")
		}
		for _, c := range ends {
			_ = c.Close()
		}
		synctest.Wait()
		if len(s.users) != 0 {
			t.Errorf("left: %v", s.users)
		}
	})
}

// deadlines records which response was aborted.
type deadlines struct {
	http.ResponseWriter
	end chan struct{}
}

func (d deadlines) SetWriteDeadline(time.Time) error {
	close(d.end)
	return nil
}

// TestSlowResponses checks that the oldest of too many unread responses are aborted.
func TestSlowResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s userLimits
		finish := make(chan struct{})
		cut := 0
		start := func(name string, private int) {
			w := deadlines{httptest.NewRecorder(), make(chan struct{})}
			go s.send(w, name, private, func() {
				select {
				case <-w.end:
					cut++
				case <-finish:
				}
			})
			time.Sleep(time.Millisecond)
		}
		start("large", maxSlowBytes+1)
		for range maxSlow + 3 {
			start("bad", 1)
		}
		time.Sleep(slowAfter)
		synctest.Wait()
		if cut != 3 {
			t.Errorf("%d were cut off", cut)
		}
		start("large", 1)
		time.Sleep(slowAfter)
		synctest.Wait()
		if cut != 4 {
			t.Errorf("%d were cut off", cut)
		}
		close(finish)
		synctest.Wait()
		if len(s.users) != 0 {
			t.Errorf("left: %v", s.users)
		}
	})
}
