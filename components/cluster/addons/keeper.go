package addons

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"hyperkube/internal/lifecycle"
)

// Keeper applies the add-ons' objects of a cluster that has perhaps run
// before. Users' policies have a say in that: a webhook that fails closed
// answers only once the cluster runs its pods, and one that forbids what an
// add-on is refuses for ever. So what cannot be applied keeps nobody waiting as
// long as the object of an earlier start is there, and is tried again.
type Keeper struct {
	client  dynamic.Interface
	batches [][]*unstructured.Unstructured
	log     *slog.Logger
	// again and longest are how soon a refused object is tried again, and how
	// long the time, which doubles, may become.
	again, longest time.Duration

	there chan struct{}
	// said is why an object was refused last; nil: none was.
	said atomic.Pointer[string]
}

// NewKeeper makes a keeper of objects that are made one batch after the other.
func NewKeeper(client dynamic.Interface, batches [][]*unstructured.Unstructured, log *slog.Logger) *Keeper {
	return &Keeper{client: client, batches: batches, log: log, again: 200 * time.Millisecond, longest: time.Minute, there: make(chan struct{})}
}

// Ready is closed once each object is there, of this start or of an earlier one.
func (k *Keeper) Ready() <-chan struct{} { return k.there }

// Describe says what stands in the way.
func (k *Keeper) Describe(context.Context) string {
	if said := k.said.Load(); said != nil {
		return *said
	}
	return ""
}

// Run applies the objects, each until that has worked once.
func (k *Keeper) Run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, batch := range k.batches {
		var there sync.WaitGroup
		for _, obj := range batch {
			there.Add(1)
			all.Go(func() { k.keep(ctx, obj, sync.OnceFunc(there.Done)) })
		}
		there.Wait()
	}
	if ctx.Err() == nil {
		close(k.there)
	}
	all.Wait()
	<-ctx.Done()
	return nil
}

// keep applies one object until that works or ctx ends, and tells once it is
// there or need not be waited for.
func (k *Keeper) keep(ctx context.Context, obj *unstructured.Unstructured, there func()) {
	defer there()
	wait, before := k.again, ""
	for {
		err := Apply(ctx, k.client, obj)
		if err == nil || ctx.Err() != nil {
			return
		}
		text := err.Error()
		k.said.Store(&text)
		if text != before {
			k.log.Warn("an object of an add-on is not as it should be", "error", err)
			before = text
		}
		if _, err := resourceOf(k.client, obj).Get(ctx, obj.GetName(), metav1.GetOptions{}); err == nil {
			there()
		}
		if !lifecycle.Pause(ctx, wait) {
			return
		}
		wait = min(2*wait, k.longest)
	}
}
