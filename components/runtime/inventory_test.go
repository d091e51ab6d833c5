//go:build cgo

package runtime

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// TestReserve checks that a request identical to one in progress gets its result, and that other
// requests for the name are rejected.
func TestReserve(t *testing.T) {
	asked := func(command string) *runtimeapi.CreateContainerRequest {
		return &runtimeapi.CreateContainerRequest{PodSandboxId: "s", Config: &runtimeapi.ContainerConfig{Command: []string{command}}}
	}
	synctest.Test(t, func(t *testing.T) {
		r := newInventory()
		reserve := func(ctx context.Context, id, command string) (string, error) {
			return r.reserve(ctx, "container", "name", id, asked(command))
		}
		refused := func(id, command string) {
			t.Helper()
			if _, err := reserve(t.Context(), id, command); err == nil || !strings.HasSuffix(err.Error(), "reserved for \"first\"") {
				t.Errorf("%s: %v", id, err)
			}
		}
		request := asked("a")
		if made, err := r.reserve(t.Context(), "container", "name", "first", request); made != "" || err != nil {
			t.Fatal(made, err)
		}
		// Creation modifies the request.
		request.Config.Labels = map[string]string{"found": "out"}
		refused("other", "b")
		type answer struct {
			made string
			err  error
		}
		second := make(chan answer, 1)
		go func() {
			made, err := reserve(t.Context(), "second", "a")
			second <- answer{made, err}
		}()
		gone, leave := context.WithCancel(t.Context())
		third := make(chan answer, 1)
		go func() {
			made, err := reserve(gone, "third", "a")
			third <- answer{made, err}
		}()
		synctest.Wait()
		if len(second) > 0 {
			t.Fatalf("not waited: %+v", <-second)
		}
		leave()
		if a := <-third; !errors.Is(a.err, context.Canceled) {
			t.Errorf("request of a disconnected client: %+v", a)
		}
		r.mu.Lock()
		r.markCreated("container", "name")
		r.mu.Unlock()
		if a := <-second; a.made != "first" || a.err != nil {
			t.Errorf("once it is made: %+v", a)
		}
		refused("late", "a")

		// After a failure, a waiting request gets the name.
		r.release("container", "name")
		if made, err := reserve(t.Context(), "fourth", "a"); made != "" || err != nil {
			t.Fatal(made, err)
		}
		go func() {
			made, err := reserve(t.Context(), "fifth", "a")
			second <- answer{made, err}
		}()
		synctest.Wait()
		r.release("container", "name")
		if a := <-second; a.made != "" || a.err != nil || r.names["containername"] != "fifth" {
			t.Errorf("once it has failed: %+v, the name is %s's", a, r.names["containername"])
		}
	})
}
