package rest

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
)

func TestCPUSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		as := func(name string) context.Context {
			return apirequest.WithUser(t.Context(), &user.DefaultInfo{Name: name})
		}
		turns := newCPUSlots(1)
		done, err := turns.acquire(as("bad"))
		if err != nil {
			t.Fatal(err)
		}
		var order []string
		wait := func(ctx context.Context, name string) {
			go func() {
				done, err := turns.acquire(ctx)
				if err != nil {
					order = append(order, "no "+name)
					return
				}
				order = append(order, name)
				done()
			}()
			synctest.Wait()
		}
		for range 3 {
			wait(as("bad"), "bad")
		}
		gone, leave := context.WithCancel(as("gone"))
		wait(gone, "gone")
		wait(as("good"), "good")
		leave()
		synctest.Wait()
		for range maxWaitingPerUser - 3 {
			wait(as("bad"), "bad")
		}
		if _, err := turns.acquire(as("bad")); !apierrors.IsTooManyRequests(err) {
			t.Errorf("range not full: %v", err)
		}
		done()
		synctest.Wait()
		if len(order) != maxWaitingPerUser+2 || order[0] != "no gone" || order[1] != "bad" || order[2] != "good" {
			t.Errorf("order: %d, %v", len(order), order[:min(len(order), 5)])
		}
		if turns.free != 1 || len(turns.queues) != 0 || len(turns.order) != 0 {
			t.Errorf("left: %+v", turns)
		}
		ended, end := context.WithCancel(as("x"))
		end()
		done, err = turns.acquire(as("y"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := turns.acquire(ended); !errors.Is(err, context.Canceled) {
			t.Errorf("after the end: %v", err)
		}
		done()
	})
}
