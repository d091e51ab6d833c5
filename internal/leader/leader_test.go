package leader

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func election() Election {
	return Election{LeaseDuration: time.Minute, RenewDeadline: 30 * time.Second, RetryPeriod: 20 * time.Millisecond}.Defaulted("x")
}

func holder(t *testing.T, kube *fake.Clientset) string {
	t.Helper()
	lease, err := kube.CoordinationV1().Leases("kube-system").Get(context.Background(), "x", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return *lease.Spec.HolderIdentity
}

// TestTurns lets two want the lease: the second begins when the first has
// returned, not when it is asked to.
func TestTurns(t *testing.T) {
	kube := fake.NewClientset()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began, asked, leave := make(chan struct{}), make(chan struct{}), make(chan struct{})
	first, second := make(chan error, 1), make(chan error, 1)
	go func() {
		first <- Run(ctx, election(), kube, nil, func(ctx context.Context) error {
			close(began)
			<-ctx.Done()
			close(asked)
			<-leave
			return nil
		})
	}()
	<-began
	secondBegan := make(chan struct{})
	go func() {
		second <- Run(t.Context(), election(), kube, nil, func(context.Context) error {
			close(secondBegan)
			return errors.New("done")
		})
	}()
	cancel()
	<-asked
	if holder(t, kube) == "" {
		t.Error("the lease is given back before its holder has ended")
	}
	select {
	case <-secondBegan:
		t.Error("two lead at a time")
	default:
	}
	close(leave)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if err := <-second; err == nil || err.Error() != "done" {
		t.Errorf("ended with %v", err)
	}
	if got := holder(t, kube); got != "" {
		t.Errorf("%q holds the lease at the end", got)
	}
}

// TestLost refuses the holder's renewals: its work is asked to end and waited
// for before the lease is given back.
func TestLost(t *testing.T) {
	kube := fake.NewClientset()
	var refuse, ended atomic.Bool
	kube.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		if !refuse.Load() {
			return false, nil, nil
		}
		return true, nil, apierrors.NewServiceUnavailable("not now")
	})
	hasty := election()
	hasty.RenewDeadline = 200 * time.Millisecond
	err := Run(t.Context(), hasty, kube, nil, func(ctx context.Context) error {
		refuse.Store(true)
		<-ctx.Done()
		refuse.Store(false)
		if holder(t, kube) == "" {
			t.Error("the lease is given back before its holder has ended")
		}
		ended.Store(true)
		return nil
	})
	if got := holder(t, kube); got != "" {
		t.Errorf("%q holds the lease at the end", got)
	}
	if err == nil || err.Error() != "leader election lost: kube-system/x" {
		t.Errorf("ended with %v", err)
	}
	if !ended.Load() {
		t.Error("returned before the work had ended")
	}
}

// TestNeverHeld ends who waits for another's lease.
func TestNeverHeld(t *testing.T) {
	kube := fake.NewClientset()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := Run(ctx, election(), kube, nil, func(context.Context) error {
		waiting, stop := context.WithCancel(t.Context())
		stop()
		return Run(waiting, election(), kube, nil, func(context.Context) error {
			t.Error("leads besides another")
			return nil
		})
	})
	if err != nil {
		t.Error(err)
	}
}
