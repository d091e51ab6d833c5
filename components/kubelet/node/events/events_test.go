package events

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
)

// answers is an event sink that returns one error after another, the last one repeatedly.
type answers struct {
	record.EventSink
	errs  []error
	calls int
}

func (a *answers) Create(e *v1.Event) (*v1.Event, error) {
	a.calls++
	return e, a.errs[min(a.calls, len(a.errs))-1]
}

// TestStartSink checks which requests are repeated, and for how long.
func TestStartSink(t *testing.T) {
	refused := fmt.Errorf("post: %w", syscall.ECONNREFUSED)
	notFound := apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "default")
	other := errors.New("no")
	for _, c := range []struct {
		name      string
		namespace string
		errs      []error
		stopped   bool
		calls     int // 0 means several
		want      error
	}{
		{"accepted", "default", []error{nil}, false, 1, nil},
		{"no API server and no namespace yet", "default", []error{refused, refused, notFound, nil}, false, 4, nil},
		{"another namespace", "app", []error{notFound}, false, 1, notFound},
		{"another error", "default", []error{refused, other}, false, 2, other},
		{"no API server for a long time", "default", []error{refused}, false, 0, refused},
		{"shutdown", "default", []error{refused}, true, 1, refused},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				stopped := make(chan struct{})
				if c.stopped {
					close(stopped)
				}
				inner := &answers{errs: c.errs}
				sink := &startSink{EventSink: inner, stopped: stopped, started: time.Now()}
				_, err := sink.Create(&v1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace}})
				if !errors.Is(err, c.want) || c.calls > 0 && inner.calls != c.calls {
					t.Errorf("%d calls, want %d; error %v, want %v", inner.calls, c.calls, err, c.want)
				}
				if c.calls == 0 {
					_, _ = sink.Create(&v1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace}})
					if after := inner.calls; after < 60 || after > 70 {
						t.Errorf("%d calls within a minute and one after it", after)
					}
				}
			})
		})
	}
}
