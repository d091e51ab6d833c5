package leaderelection

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
	return Election{LeaseDuration: time.Minute, RenewDeadline: 30 * time.Second, RetryPeriod: 20 * time.Millisecond}.WithDefaults("x")
}

func holder(t *testing.T, kube *fake.Clientset) string {
	t.Helper()
	lease, err := kube.CoordinationV1().Leases("kube-system").Get(context.Background(), "x", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return *lease.Spec.HolderIdentity
}

// TestSequentialLeaders starts two candidates and checks that the second becomes the leader only
// after the function of the first has returned.
func TestSequentialLeaders(t *testing.T) {
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
		t.Error("the lease was released before the function of its holder returned")
	}
	select {
	case <-secondBegan:
		t.Error("two leaders at the same time")
	default:
	}
	close(leave)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if err := <-second; err == nil || err.Error() != "done" {
		t.Errorf("Run returned %v", err)
	}
	if got := holder(t, kube); got != "" {
		t.Errorf("%q holds the lease at the end", got)
	}
}

// TestLeaseLost rejects the renewals of the leader and checks that its function has stopped before
// the lease is released.
func TestLeaseLost(t *testing.T) {
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
			t.Error("the lease was released before the function of its holder returned")
		}
		ended.Store(true)
		return nil
	})
	if got := holder(t, kube); got != "" {
		t.Errorf("%q holds the lease at the end", got)
	}
	if err == nil || err.Error() != "leader election lost: kube-system/x" {
		t.Errorf("Run returned %v", err)
	}
	if !ended.Load() {
		t.Error("returned before the function had stopped")
	}
}

// TestCanceledCandidate stops a candidate that waits for the lease of another.
func TestCanceledCandidate(t *testing.T) {
	kube := fake.NewClientset()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := Run(ctx, election(), kube, nil, func(context.Context) error {
		waiting, stop := context.WithCancel(t.Context())
		stop()
		return Run(waiting, election(), kube, nil, func(context.Context) error {
			t.Error("became leader while another holds the lease")
			return nil
		})
	})
	if err != nil {
		t.Error(err)
	}
}
