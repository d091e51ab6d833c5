// Package etcdmembers adds and removes the etcd members of control plane nodes.
//
// A new member joins as a learner, which has no vote. The quorum of the other members does not
// change while the learner catches up, or if it never starts.
//
// https://etcd.io/docs/v3.6/op-guide/runtime-configuration/
package etcdmembers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"

	"hyperkube/internal/base/lifecycle"
)

// Dialer creates an etcd client that connects to the members at the URLs.
type Dialer func(urls []string) (*clientv3.Client, error)

// Cluster is a connection to an etcd cluster for changes of its membership.
type Cluster struct {
	client *clientv3.Client
	log    *slog.Logger
}

// Dial connects to a cluster by the URLs of any of its members. log may be nil.
func Dial(urls []string, dial Dialer, log *slog.Logger) (*Cluster, error) {
	client, err := dial(urls)
	if err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.Default()
	}
	return &Cluster{client: client, log: log}, nil
}

// Close closes the connections to the members.
func (c *Cluster) Close() { _ = c.client.Close() }

// retryInterval is the pause before a request that has failed with a transient error is sent again.
const retryInterval = 50 * time.Millisecond

// AddLearner adds a member with peerURL as a learner, and returns the value of --initial-cluster for the member called
// name: NAME=URL,…. If a member with this URL exists but has never started, it is used. If it has started before,
// AddLearner returns an error, because the data of that member is missing. It retries transient errors until ctx is
// done.
func (c *Cluster) AddLearner(ctx context.Context, name, peerURL string) (initial string, err error) {
	list, err := c.list(ctx)
	if err != nil {
		return "", fmt.Errorf("listing etcd members: %w", err)
	}
	members := list.Members
	if m := find(members, peerURL); m != nil {
		if m.Name != "" {
			return "", fmt.Errorf("etcd already has a member %q at %s: reset the machine where it runs, or if that machine is lost, run \"etcdctl member remove %x\" in the etcd pod of another control plane node", m.Name, peerURL, m.ID)
		}
	} else if members, err = c.addLearner(ctx, peerURL); err != nil {
		return "", err
	}
	var all []string
	for _, m := range members {
		for _, url := range m.PeerURLs {
			memberName := m.Name
			if slices.Contains(m.PeerURLs, peerURL) {
				memberName = name
			}
			if memberName != "" { // etcd itself reports other members that have not started
				all = append(all, memberName+"="+url)
			}
		}
	}
	return strings.Join(all, ","), nil
}

// list lists the members. It retries transient errors, for example while the cluster has no leader, until ctx is done.
func (c *Cluster) list(ctx context.Context) (*clientv3.MemberListResponse, error) {
	for {
		list, err := c.client.MemberList(ctx)
		if err == nil || !isTransient(err) {
			return list, err
		}
		if !lifecycle.Pause(ctx, retryInterval) {
			return nil, errors.Join(err, ctx.Err())
		}
	}
}

// isTransient reports whether err is a transient error of etcd: there is no leader, an election is in
// progress, or the request timed out. In the last case the request may have been applied.
func isTransient(err error) bool {
	var etcdErr rpctypes.EtcdError
	return errors.As(err, &etcdErr) && etcdErr.Code() == codes.Unavailable
}

// addLearner adds a learner and returns all members. etcd allows only one learner at a time, so it retries until
// another member has finished joining, or until ctx is done.
func (c *Cluster) addLearner(ctx context.Context, peerURL string) ([]*etcdserverpb.Member, error) {
	for {
		var members []*etcdserverpb.Member
		err := withChangeTimeout(ctx, func(ctx context.Context) error {
			added, err := c.client.MemberAddAsLearner(ctx, []string{peerURL})
			if err == nil {
				members = added.Members
			}
			return err
		})
		// An earlier attempt without a response has added the member. Within the same second, etcd
		// derives the same member ID.
		if errors.Is(err, rpctypes.ErrPeerURLExist) || errors.Is(err, rpctypes.ErrMemberExist) {
			var list *clientv3.MemberListResponse
			if list, err = c.list(ctx); err == nil {
				members = list.Members
			}
		}
		if err == nil {
			return members, nil
		}
		if !errors.Is(err, rpctypes.ErrTooManyLearners) && !isTransient(err) && !errors.Is(err, errNoResponse) {
			return nil, fmt.Errorf("adding etcd member: %w", err)
		}
		if !lifecycle.Pause(ctx, retryInterval) {
			return nil, fmt.Errorf("adding etcd member: %w", errors.Join(err, ctx.Err()))
		}
	}
}

// changeTimeout is the timeout of one membership change. It takes a few milliseconds if there is a
// quorum.
const changeTimeout = 3 * time.Second

// errNoResponse is the error if etcd has not responded to a membership change within changeTimeout.
var errNoResponse = errors.New("etcd did not respond")

// withChangeTimeout calls change with a short timeout. If two membership changes are proposed concurrently, raft drops
// one of them, and etcd never responds to that request. In this case the error is errNoResponse and the caller should
// retry.
func withChangeTimeout(ctx context.Context, change func(context.Context) error) error {
	changeCtx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	err := change(changeCtx)
	if err != nil && changeCtx.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", errNoResponse, err)
	}
	return err
}

// Promote promotes the member at peerURL to a voting member as soon as it has caught up with the leader, and retries
// until then or until ctx is done. It may be called before the member has started, and repeatedly. It returns an error
// if there is no such member.
func (c *Cluster) Promote(ctx context.Context, peerURL string) error {
	list, err := c.list(ctx)
	if err != nil {
		return fmt.Errorf("listing etcd members: %w", err)
	}
	m := find(list.Members, peerURL)
	if m == nil {
		return fmt.Errorf("no etcd member at %s", peerURL)
	}
	if !m.IsLearner {
		return nil
	}
	for {
		err := withChangeTimeout(ctx, func(ctx context.Context) error {
			_, err := c.client.MemberPromote(ctx, m.ID)
			return err
		})
		if err == nil || errors.Is(err, rpctypes.ErrMemberNotLearner) {
			return nil
		}
		if errors.Is(err, rpctypes.ErrMemberNotFound) {
			return fmt.Errorf("promoting etcd member: %w", err)
		}
		// The learner has not caught up, or an election is in progress.
		c.log.Debug("new etcd member cannot become a voting member yet because it has not caught up or no leader is elected, retrying until it can", "peerURL", peerURL, "err", err)
		if !lifecycle.Pause(ctx, retryInterval) {
			return fmt.Errorf("promoting etcd member: %w", errors.Join(err, ctx.Err()))
		}
	}
}

// Remove removes the member at peerURL from the cluster, and reports whether it has. It retries after every error until
// ctx is done. It does not remove the only member, which has the only copy of the data. A missing member is not an
// error.
func (c *Cluster) Remove(ctx context.Context, peerURL string) (removed bool, err error) {
	for {
		list, err := c.list(ctx)
		if err != nil {
			return false, fmt.Errorf("listing etcd members: %w", err)
		}
		m := find(list.Members, peerURL)
		if m == nil || len(list.Members) == 1 {
			return false, nil
		}
		err = withChangeTimeout(ctx, func(ctx context.Context) error {
			_, err := c.client.MemberRemove(ctx, m.ID)
			return err
		})
		if err == nil || errors.Is(err, rpctypes.ErrMemberNotFound) {
			return true, nil
		}
		// There may be no quorum, or an election is in progress.
		if !lifecycle.Pause(ctx, retryInterval) {
			return false, fmt.Errorf("removing etcd member: %w", errors.Join(err, ctx.Err()))
		}
	}
}

// URLs returns the client URLs of all members, as etcd lists them.
func (c *Cluster) URLs(ctx context.Context) ([]string, error) {
	list, err := c.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing etcd members: %w", err)
	}
	var urls []string
	for _, m := range list.Members {
		urls = append(urls, m.ClientURLs...)
	}
	return urls, nil
}

// find returns the member with peerURL, or nil.
func find(members []*etcdserverpb.Member, peerURL string) *etcdserverpb.Member {
	for _, m := range members {
		if slices.Contains(m.PeerURLs, peerURL) {
			return m
		}
	}
	return nil
}
