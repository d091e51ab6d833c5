package query

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Endpoints finds the agents of other nodes by the endpoints of their Service, for each request.
type Endpoints struct {
	kube               kubernetes.Interface
	namespace, service string
	node               string
	client             *http.Client
}

// NewEndpoints returns the Peers of the agent on the node. kube may list EndpointSlices in the namespace. config has the client certificate of agents
// and the CA that verifies them.
func NewEndpoints(kube kubernetes.Interface, namespace, service, node string, config *tls.Config) *Endpoints {
	return &Endpoints{kube: kube, namespace: namespace, service: service, node: node, client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: config, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 5 * time.Second, ResponseHeaderTimeout: 30 * time.Second,
		DialContext: (&net.Dialer{Timeout: 3 * time.Second}).DialContext, IdleConnTimeout: time.Minute,
	}}}
}

// Close closes idle connections.
func (e *Endpoints) Close() { e.client.CloseIdleConnections() }

// List implements Peers.
func (e *Endpoints) List(ctx context.Context) ([]Peer, error) {
	slices, err := e.kube.DiscoveryV1().EndpointSlices(e.namespace).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + e.service})
	if err != nil {
		return nil, fmt.Errorf("finding the agents of other nodes: %w", err)
	}
	found := map[string]bool{e.node: true}
	var out []Peer
	for _, s := range slices.Items {
		if len(s.Ports) == 0 || s.Ports[0].Port == nil {
			continue
		}
		for _, endpoint := range s.Endpoints {
			if endpoint.NodeName == nil || found[*endpoint.NodeName] || len(endpoint.Addresses) == 0 {
				continue
			}
			found[*endpoint.NodeName] = true
			out = append(out, &remote{node: *endpoint.NodeName, client: e.client, host: net.JoinHostPort(endpoint.Addresses[0], strconv.Itoa(int(*s.Ports[0].Port)))})
		}
	}
	return out, nil
}

// remote is the agent of another node.
type remote struct {
	node, host string
	client     *http.Client
}

// Node implements Peer.
func (r *remote) Node() string { return r.node }

// Search implements Peer.
func (r *remote) Search(ctx context.Context, p Params, out chan<- Line) error {
	v := p.Values()
	v.Set("namespace", p.Namespace)
	if p.NodeLogs {
		v.Set("nodeLogs", "true")
	}
	at := url.URL{Scheme: "https", Host: r.host, Path: peerPath, RawQuery: v.Encode()}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return fmt.Errorf("creating request: %w", err)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		return fmt.Errorf("searching: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 300)) // the status alone is reported if this fails
		return fmt.Errorf("agent responded %s: %s", resp.Status, bytes.TrimSpace(text))
	}
	return ReadLines(resp.Body, func(l Line) error {
		select {
		case out <- l:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
}

// ReadLines calls yield for each line of a response, until it returns an error.
func ReadLines(r io.Reader, yield func(Line) error) error {
	dec := json.NewDecoder(bufio.NewReaderSize(r, 64<<10))
	for {
		var l Line
		if err := dec.Decode(&l); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading response: %w", err)
		}
		if err := yield(l); err != nil {
			return err
		}
	}
}
