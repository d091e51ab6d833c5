package members_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"hyperkube/components/cluster/members"
	"hyperkube/components/etcd"
	"hyperkube/internal/testport"
)

func freeURLs(t *testing.T, n int) []string {
	t.Helper()
	var urls []string
	for range n {
		urls = append(urls, "http://"+testport.Address(t))
	}
	return urls
}

func start(t *testing.T, cfg etcd.Config) (ended chan error) {
	t.Helper()
	s, err := etcd.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended = make(chan error, 1)
	done := make(chan struct{})
	go func() {
		ended <- s.Run(ctx)
		close(done)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return ended
}

// TestMembers lets a second member enter and leave.
func TestMembers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	urls := freeURLs(t, 4)
	config := func(name string, client, peer string) etcd.Config {
		return etcd.Config{
			DataDir: filepath.Join(t.TempDir(), name), Name: name, ListenClientURLs: []string{client}, ListenPeerURLs: []string{peer},
			HeartbeatInterval: 100 * time.Millisecond, ElectionTimeout: time.Second,
		}
	}
	start(t, config("one", urls[0], urls[1]))
	dial := func(urls []string) (*clientv3.Client, error) { return etcd.Dial(etcd.DialConfig{Servers: urls}) }
	c, err := members.Dial(urls[:1], dial, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()

	if removed, err := c.Remove(ctx, urls[1]); removed || err != nil {
		t.Errorf("the only member is removed: %v, %v", removed, err)
	}
	initial, err := c.AddLearner(ctx, "two", urls[3])
	if err != nil || !strings.Contains(initial, "two="+urls[3]) || !strings.Contains(initial, "one="+urls[1]) {
		t.Fatal(initial, err)
	}
	if again, err := c.AddLearner(ctx, "two", urls[3]); err != nil || again != initial {
		t.Errorf("a second try: %s, %v", again, err)
	}
	cfg := config("two", urls[2], urls[3])
	cfg.InitialCluster, cfg.InitialClusterState = initial, "existing"
	ended := start(t, cfg)
	for range 2 {
		if err := c.Promote(ctx, urls[3]); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := c.URLs(ctx); err != nil || len(all) != 2 {
		t.Errorf("members at %v, %v", all, err)
	}
	if _, err := c.AddLearner(ctx, "two", urls[3]); err == nil {
		t.Error("one that has started enters again")
	}
	if removed, err := c.Remove(ctx, urls[3]); !removed || err != nil {
		t.Errorf("removed: %v, %v", removed, err)
	}
	select {
	case <-ended:
	case <-ctx.Done():
		t.Error("a member that was removed goes on")
	}
	if removed, err := c.Remove(ctx, urls[3]); removed || err != nil {
		t.Errorf("removed once more: %v, %v", removed, err)
	}
	if err := c.Promote(ctx, urls[3]); err == nil {
		t.Error("one that is none has a vote")
	}
}
