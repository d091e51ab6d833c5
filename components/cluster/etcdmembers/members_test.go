package etcdmembers_test

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"hyperkube/components/cluster/etcdmembers"
	"hyperkube/components/etcd"
	"hyperkube/internal/testing/testport"
)

func freeURLs(t *testing.T, n int) []string {
	t.Helper()
	var urls []string
	for range n {
		urls = append(urls, "http://"+testport.Address(t))
	}
	return urls
}

func start(t *testing.T, cfg etcd.Config) (exited chan error) {
	t.Helper()
	s, err := etcd.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	exited = make(chan error, 1)
	done := make(chan struct{})
	go func() {
		exited <- s.Run(ctx)
		close(done)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return exited
}

// TestMembers adds and removes a second member.
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
	c, err := etcdmembers.Dial(urls[:1], dial, nil)
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
		t.Errorf("second attempt: %s, %v", again, err)
	}
	cfg := config("two", urls[2], urls[3])
	cfg.InitialCluster, cfg.InitialClusterState = initial, "existing"
	exited := start(t, cfg)
	for range 2 {
		if err := c.Promote(ctx, urls[3]); err != nil {
			t.Fatal(err)
		}
	}
	if all, err := c.URLs(ctx); err != nil || len(all) != 2 {
		t.Errorf("members at %v, %v", all, err)
	}
	if _, err := c.AddLearner(ctx, "two", urls[3]); err == nil {
		t.Error("a member that has started was added again")
	}
	if removed, err := c.Remove(ctx, urls[3]); !removed || err != nil {
		t.Errorf("removed: %v, %v", removed, err)
	}
	for _, when := range []string{"removed member", "restarted removed member"} {
		select {
		case err := <-exited:
			if err == nil || !strings.Contains(err.Error(), "has been removed from the cluster") {
				t.Errorf("%s exited with %v", when, err)
			}
		case <-ctx.Done():
			t.Fatalf("%s did not exit", when)
		}
		exited = start(t, cfg)
	}
	if removed, err := c.Remove(ctx, urls[3]); removed || err != nil {
		t.Errorf("removed again: %v, %v", removed, err)
	}
	if err := c.Promote(ctx, urls[3]); err == nil {
		t.Error("a removed member was promoted")
	}
}

// electing is a cluster without a leader at the first call of each kind; a change may have been
// applied nevertheless. The second request to remove a member gets no response.
type electing struct {
	clientv3.Cluster
	listed, added bool
	removed       int
}

func (c *electing) MemberList(ctx context.Context, opts ...clientv3.OpOption) (*clientv3.MemberListResponse, error) {
	if !c.listed {
		c.listed = true
		return nil, rpctypes.ErrLeaderChanged
	}
	return c.Cluster.MemberList(ctx, opts...)
}

func (c *electing) MemberAddAsLearner(ctx context.Context, peers []string) (*clientv3.MemberAddResponse, error) {
	resp, err := c.Cluster.MemberAddAsLearner(ctx, peers)
	if !c.added {
		c.added = true
		return nil, rpctypes.ErrTimeoutDueToConnectionLost
	}
	return resp, err
}

func (c *electing) MemberRemove(ctx context.Context, id uint64) (*clientv3.MemberRemoveResponse, error) {
	if c.removed++; c.removed == 1 {
		return nil, rpctypes.ErrTimeoutDueToLeaderFail
	}
	if c.removed == 2 { // raft dropped the proposal
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return c.Cluster.MemberRemove(ctx, id)
}

// TestElection adds and removes a member during an election.
func TestElection(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	urls := freeURLs(t, 3)
	start(t, etcd.Config{DataDir: filepath.Join(t.TempDir(), "one"), Name: "one", ListenClientURLs: urls[:1], ListenPeerURLs: urls[1:2]})
	fake := &electing{}
	dial := func(urls []string) (*clientv3.Client, error) {
		client, err := etcd.Dial(etcd.DialConfig{Servers: urls})
		if err == nil {
			fake.Cluster, client.Cluster = client.Cluster, fake
		}
		return client, err
	}
	c, err := etcdmembers.Dial(urls[:1], dial, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	initial, err := c.AddLearner(ctx, "two", urls[2])
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Split(initial, ",")
	slices.Sort(all)
	if want := []string{"one=" + urls[1], "two=" + urls[2]}; !slices.Equal(all, want) {
		t.Errorf("members are %q, want %q", all, want)
	}
	fake.listed = false
	removeCtx, cancel := context.WithTimeout(ctx, 10*time.Second) // the timeout of reset
	defer cancel()
	if removed, err := c.Remove(removeCtx, urls[2]); !removed || err != nil {
		t.Errorf("removed: %t, %v", removed, err)
	}
	if !fake.listed || !fake.added || fake.removed < 3 {
		t.Errorf("calls missing: %+v", fake)
	}
}
