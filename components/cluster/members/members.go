// Package members lets masters enter and leave the etcd cluster that they
// make up together.
//
// A new member enters as a learner, which has no vote: as long as it catches
// up, or should it never start, the others need nothing of it.
//
// https://etcd.io/docs/v3.6/op-guide/runtime-configuration/
package members

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

	"hyperkube/internal/lifecycle"
)

// Dialer makes a client of the members at the URLs.
type Dialer func(urls []string) (*clientv3.Client, error)

// Cluster is an etcd cluster as seen by an administrator.
type Cluster struct {
	client *clientv3.Client
	log    *slog.Logger
}

// Dial reaches a cluster by the URLs of any of its members. Log may be nil.
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

// Close ends the connections.
func (c *Cluster) Close() { _ = c.client.Close() }

// pace is between two tries of what cannot be waited for.
const pace = 50 * time.Millisecond

// AddLearner makes peerURL one of the cluster's members, without a vote, and
// returns what a member called name must be told of all: NAME=URL,…. A member
// of that URL that never started is taken as it is; one that did start is an
// error, for its data would be missing.
func (c *Cluster) AddLearner(ctx context.Context, name, peerURL string) (initial string, err error) {
	list, err := c.list(ctx)
	if err != nil {
		return "", fmt.Errorf("asking etcd for its members: %w", err)
	}
	members := list.Members
	if m := find(members, peerURL); m != nil {
		if m.Name != "" {
			return "", fmt.Errorf("etcd has a member %q at %s already: reset the machine where it runs, or if that is lost call \"etcdctl member remove %x\" in the pod of etcd of another master", m.Name, peerURL, m.ID)
		}
	} else if members, err = c.addLearner(ctx, peerURL); err != nil {
		return "", err
	}
	var all []string
	for _, m := range members {
		for _, url := range m.PeerURLs {
			who := m.Name
			if slices.Contains(m.PeerURLs, peerURL) {
				who = name
			}
			if who != "" { // others that are just entering are told by etcd
				all = append(all, who+"="+url)
			}
		}
	}
	return strings.Join(all, ","), nil
}

// list asks for the members, again as long as they have no leader.
func (c *Cluster) list(ctx context.Context) (*clientv3.MemberListResponse, error) {
	for {
		list, err := c.client.MemberList(ctx)
		if err == nil || !passing(err) {
			return list, err
		}
		if !lifecycle.Pause(ctx, pace) {
			return nil, errors.Join(err, ctx.Err())
		}
	}
}

// passing tells of an error of etcd's own that another try may not meet: there is
// no leader, a new one is being chosen, or what was asked for took too long and
// may have been done nevertheless.
func passing(err error) bool {
	var own rpctypes.EtcdError
	return errors.As(err, &own) && own.Code() == codes.Unavailable
}

// addLearner waits while others are entering: there is one learner at a time.
func (c *Cluster) addLearner(ctx context.Context, peerURL string) ([]*etcdserverpb.Member, error) {
	for {
		var members []*etcdserverpb.Member
		err := answered(ctx, func(ctx context.Context) error {
			added, err := c.client.MemberAddAsLearner(ctx, []string{peerURL})
			if err == nil {
				members = added.Members
			}
			return err
		})
		// A try did it that was not answered; in the same second it gets the same ID.
		if errors.Is(err, rpctypes.ErrPeerURLExist) || errors.Is(err, rpctypes.ErrMemberExist) {
			var list *clientv3.MemberListResponse
			if list, err = c.list(ctx); err == nil {
				members = list.Members
			}
		}
		if err == nil {
			return members, nil
		}
		if !errors.Is(err, rpctypes.ErrTooManyLearners) && !passing(err) && !errors.Is(err, errUnanswered) {
			return nil, fmt.Errorf("entering etcd: %w", err)
		}
		if !lifecycle.Pause(ctx, pace) {
			return nil, fmt.Errorf("entering etcd: %w", errors.Join(err, ctx.Err()))
		}
	}
}

// answerWithin is how long a change of members may take, which is some
// milliseconds where there is a majority.
const answerWithin = 3 * time.Second

var errUnanswered = errors.New("etcd did not answer")

// answered calls change with little time. Of two changes of members at once raft
// drops one, and etcd never answers whoever asked for that: it is to be tried
// again. The error is errUnanswered then.
func answered(ctx context.Context, change func(context.Context) error) error {
	short, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	err := change(short)
	if err != nil && short.Err() != nil && ctx.Err() == nil {
		return fmt.Errorf("%w: %w", errUnanswered, err)
	}
	return err
}

// Promote gives the member at peerURL its vote, as soon as it has what the
// others have. It may be called before the member has started, and again.
func (c *Cluster) Promote(ctx context.Context, peerURL string) error {
	list, err := c.list(ctx)
	if err != nil {
		return fmt.Errorf("asking etcd for its members: %w", err)
	}
	m := find(list.Members, peerURL)
	if m == nil {
		return fmt.Errorf("etcd has no member at %s", peerURL)
	}
	if !m.IsLearner {
		return nil
	}
	for {
		err := answered(ctx, func(ctx context.Context) error {
			_, err := c.client.MemberPromote(ctx, m.ID)
			return err
		})
		if err == nil || errors.Is(err, rpctypes.ErrMemberNotLearner) {
			return nil
		}
		if errors.Is(err, rpctypes.ErrMemberNotFound) {
			return fmt.Errorf("giving this member of etcd a vote: %w", err)
		}
		// It is behind, or the others are about to choose a leader.
		c.log.Debug("etcd's new member has no vote yet", "err", err)
		if !lifecycle.Pause(ctx, pace) {
			return fmt.Errorf("giving this member of etcd a vote: %w", errors.Join(err, ctx.Err()))
		}
	}
}

// Remove takes the member at peerURL out of the cluster, unless it is the only
// one, whose data is all that there is. No such member is no error.
func (c *Cluster) Remove(ctx context.Context, peerURL string) (removed bool, err error) {
	for {
		list, err := c.list(ctx)
		if err != nil {
			return false, fmt.Errorf("asking etcd for its members: %w", err)
		}
		m := find(list.Members, peerURL)
		if m == nil || len(list.Members) == 1 {
			return false, nil
		}
		err = answered(ctx, func(ctx context.Context) error {
			_, err := c.client.MemberRemove(ctx, m.ID)
			return err
		})
		if err == nil || errors.Is(err, rpctypes.ErrMemberNotFound) {
			return true, nil
		}
		// The others have to agree, and may just choose a leader.
		if !lifecycle.Pause(ctx, pace) {
			return false, fmt.Errorf("leaving etcd: %w", errors.Join(err, ctx.Err()))
		}
	}
}

// URLs are those at which clients reach the members.
func (c *Cluster) URLs(ctx context.Context) ([]string, error) {
	list, err := c.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("asking etcd for its members: %w", err)
	}
	var urls []string
	for _, m := range list.Members {
		urls = append(urls, m.ClientURLs...)
	}
	return urls, nil
}

func find(members []*etcdserverpb.Member, peerURL string) *etcdserverpb.Member {
	for _, m := range members {
		if slices.Contains(m.PeerURLs, peerURL) {
			return m
		}
	}
	return nil
}
