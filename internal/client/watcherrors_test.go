package client

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"hyperkube/internal/base/logging"
)

// TestStartErrors checks which errors of an informer are logged as errors.
func TestStartErrors(t *testing.T) {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	refused := fmt.Errorf("failed to list: %w", syscall.ECONNREFUSED)
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no role"))
	for _, c := range []struct {
		name  string
		after time.Duration
		err   error
		want  string
	}{
		{"no API server at the start", 0, refused, "level=DEBUG"},
		{"no role at the start", 59 * time.Second, forbidden, "level=DEBUG"},
		{"no API server later", time.Minute, refused, "level=ERROR"},
		{"no role later", time.Minute, forbidden, "level=ERROR"},
		{"another error at the start", 0, apierrors.NewUnauthorized("expired"), "level=ERROR"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				logging.SetDefault(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
				handle := StartErrors()
				time.Sleep(c.after)
				handle(t.Context(), cache.NewReflector(&cache.ListWatch{}, &corev1.Pod{}, cache.NewStore(cache.MetaNamespaceKeyFunc), 0), c.err)
				if !strings.Contains(out.String(), c.want) {
					t.Errorf("the log is %q, want %s", out.String(), c.want)
				}
			})
		})
	}
}
