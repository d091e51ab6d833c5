package linearizability

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"hyperkube/internal/credentials/pki"
)

// highlyAvailable is a cluster of three etcd members and two API servers, each on a separate host.
type highlyAvailable struct {
	*cluster
	hosts              []*host // of the members, and then of the API servers
	members, apiServer []*process
}

const members, apiServers = 3, 2

func startHighlyAvailable(t *testing.T) *highlyAvailable {
	t.Helper()
	h := &highlyAvailable{cluster: &cluster{t: t}, hosts: newHosts(t, members+apiServers)}
	var addresses []net.IP
	var peers []string
	for i, host := range h.hosts {
		addresses = append(addresses, net.ParseIP(host.address))
		if i < members {
			h.cluster.members = append(h.cluster.members, "http://"+host.port("2379"))
			peers = append(peers, fmt.Sprintf("member-%d=http://%s", i, host.port("2380")))
		}
	}
	set, err := pki.Ensure(filepath.Join(t.TempDir(), "pki"), pki.Config{NodeName: "test", NodeAddresses: addresses})
	if err != nil {
		t.Fatal(err)
	}
	for i, host := range h.hosts {
		config := child{PKI: set.Dir}
		if i < members {
			config.Name, config.Data, config.Bootstrap = fmt.Sprint("member-", i), filepath.Join(t.TempDir(), "etcd"), strings.Join(peers, ",")
			config.ClientURL, config.PeerURL = h.cluster.members[i], "http://"+host.port("2380")
			h.members = append(h.members, startProcess(t, host.namespace, config))
			continue
		}
		config.Name, config.Etcd, config.API = fmt.Sprint("server-", i-members), h.cluster.members, host.port("6443")
		h.apiServer = append(h.apiServer, startProcess(t, host.namespace, config))
		h.servers = append(h.servers, newServer(t, config.Name, config.API, set.CA))
	}
	return h
}

// leader returns the number of the leader, or a random member if there is none.
func (h *highlyAvailable) leader() int {
	for i, url := range h.cluster.members {
		client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
		if err != nil {
			h.t.Error(err)
			continue
		}
		ctx, cancel := context.WithTimeout(h.t.Context(), time.Second)
		status, err := client.Status(ctx, url)
		cancel()
		client.Close()
		if err == nil && status.Leader == status.Header.MemberId {
			return i
		}
	}
	return rand.IntN(members)
}

// anyMember returns the leader or any member.
func (h *highlyAvailable) anyMember() int {
	if rand.IntN(2) == 0 {
		return h.leader()
	}
	return rand.IntN(members)
}

// anyHost returns the host of an API server.
func (h *highlyAvailable) anyServer() *host { return h.hosts[members+rand.IntN(apiServers)] }

// others returns the hosts without that of a member.
func (h *highlyAvailable) others(member int, of []*host) []*host {
	return slices.DeleteFunc(slices.Clone(of), func(x *host) bool { return x == h.hosts[member] })
}

// cut is a fault that partitions the network for a while.
func (h *highlyAvailable) cut(name string, partition func()) fault {
	return fault{name, func() {
		partition()
		time.Sleep(time.Second + milliseconds(2000))
		for _, host := range h.hosts {
			host.heal()
		}
	}}
}

// faults returns the faults. The first ones are the most important ones.
func (h *highlyAvailable) faults() []fault {
	peers := h.hosts[:members]
	return []fault{
		{"kill the leader", func() { h.members[h.leader()].kill(milliseconds(2000)) }},
		h.cut("partition the leader", func() {
			leader := h.leader()
			partition([]*host{h.hosts[leader]}, h.others(leader, peers))
		}),
		{"kill an API server", func() { h.apiServer[rand.IntN(apiServers)].kill(milliseconds(500)) }},
		{"kill a member", func() { h.members[rand.IntN(members)].kill(milliseconds(2000)) }},
		{"kill a member for long", func() { h.members[h.anyMember()].kill(5 * time.Second) }},
		{"kill all members", func() {
			for _, p := range h.members {
				p.kill(milliseconds(500))
			}
		}},
		{"kill everything", func() {
			for _, p := range slices.Concat(h.members, h.apiServer) {
				p.kill(milliseconds(500))
			}
		}},
		{"pause the leader", func() { h.members[h.leader()].pause(time.Second + milliseconds(2000)) }},
		{"pause an API server", func() { h.apiServer[rand.IntN(apiServers)].pause(time.Second + milliseconds(2000)) }},
		h.cut("partition a member from all hosts", func() {
			member := h.anyMember()
			partition([]*host{h.hosts[member]}, h.others(member, h.hosts))
		}),
		h.cut("partition two members", func() {
			one := h.anyMember()
			partition([]*host{h.hosts[one]}, []*host{h.hosts[(one+1)%members]})
		}),
		h.cut("partition all members", func() {
			partition(peers[:1], peers[1:])
			partition(peers[1:2], peers[2:])
		}),
		h.cut("member that receives nothing from others", func() {
			member := h.anyMember()
			h.hosts[member].drop(h.others(member, peers)...)
		}),
		h.cut("member that others do not receive", func() {
			member := h.anyMember()
			for _, other := range h.others(member, peers) {
				other.drop(h.hosts[member])
			}
		}),
		h.cut("partition an API server from a member", func() { partition([]*host{h.anyServer()}, []*host{h.hosts[h.anyMember()]}) }),
		h.cut("partition an API server from all members", func() { partition([]*host{h.anyServer()}, peers) }),
		h.cut("partition a member, kill another", func() {
			leader := h.leader()
			partition([]*host{h.hosts[leader]}, h.others(leader, peers))
			h.members[(leader+1)%members].kill(milliseconds(500))
		}),
	}
}

// TestMembers kills and pauses members and API servers of a highly available cluster, and partitions
// their network.
func TestMembers(t *testing.T) {
	t.Parallel()
	began := time.Now()
	h := startHighlyAvailable(t)
	all := h.faults()
	for more := until(); more(h.total.rounds); {
		if h.total.rounds == 0 {
			h.round(all[:3]...)
			continue
		}
		h.round(all[rand.IntN(len(all))], all[rand.IntN(len(all))], all[rand.IntN(len(all))])
	}
	h.log(began)
}
