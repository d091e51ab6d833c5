package devices

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"hyperkube/components/kubelet/nodesocket"
	"hyperkube/components/kubelet/pluginwatch"
)

// Run takes in plugins until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	var wait sync.WaitGroup
	defer wait.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := grpc.NewServer()
	api.RegisterRegistrationServer(s, &registration{m: m, ctx: func() context.Context { return ctx }, wait: &wait})
	// Plugins register again when the socket is made anew.
	return nodesocket.Serve(ctx, filepath.Join(m.cfg.Dir, "kubelet.sock"), "device plugins", s)
}

// registration is the service that plugins call.
type registration struct {
	api.UnimplementedRegistrationServer
	m    *Manager
	ctx  func() context.Context // lives as long as Run does
	wait *sync.WaitGroup
}

// Register implements api.RegistrationServer.
func (r *registration) Register(ctx context.Context, in *api.RegisterRequest) (*api.Empty, error) {
	r.m.cfg.Metrics.PluginRegistered(in.ResourceName)
	if !slices.Contains(api.SupportedVersions[:], in.Version) {
		return nil, fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", in.Version, api.SupportedVersions)
	}
	if err := extended(in.ResourceName); err != nil {
		return nil, err
	}
	if in.Endpoint != filepath.Base(in.Endpoint) {
		return nil, fmt.Errorf("endpoint %q is not the name of a socket", in.Endpoint)
	}
	p, err := r.m.connect(ctx, in)
	if err != nil {
		return nil, err
	}
	r.wait.Go(func() {
		if err := r.m.follow(r.ctx(), in, p); err != nil && r.ctx().Err() == nil {
			r.m.cfg.Log.Warn("a device plugin has ended", "resource", in.ResourceName, "error", err)
		}
	})
	return &api.Empty{}, nil
}

// extended tells why a name is not one of an extended resource.
func extended(name string) error {
	domain, _, ok := strings.Cut(name, "/")
	if !ok || domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") || strings.HasPrefix(name, v1.DefaultResourceRequestsPrefix) ||
		len(validation.IsQualifiedName(v1.DefaultResourceRequestsPrefix+name)) > 0 {
		return fmt.Errorf("the ResourceName %q is invalid", name)
	}
	return nil
}

// connect asks a plugin how it wants to be used. One that does not say is not used,
// and told so.
func (m *Manager) connect(ctx context.Context, in *api.RegisterRequest) (*pool, error) {
	conn, err := pluginwatch.Dial(filepath.Join(m.cfg.Dir, in.Endpoint))
	if err != nil {
		return nil, err
	}
	p := &pool{client: api.NewDevicePluginClient(conn), conn: conn, devices: map[string]*api.Device{}, endpoint: in.Endpoint}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if p.options, err = p.client.GetDevicePluginOptions(ctx, &api.Empty{}, grpc.WaitForReady(true)); err != nil {
		conn.Close()
		return nil, fmt.Errorf("failed to get device plugin options: %w", err)
	}
	return p, nil
}

// follow keeps the devices of one plugin until it ends.
func (m *Manager) follow(ctx context.Context, in *api.RegisterRequest, p *pool) error {
	defer p.conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := p.client.ListAndWatch(ctx, &api.Empty{})
	if err != nil {
		return err
	}
	name := in.ResourceName
	m.mu.Lock()
	m.take(name, p)
	m.mu.Unlock()
	m.cfg.Log.Info("a device plugin has registered", "resource", name)
	for {
		list, err := stream.Recv()
		m.mu.Lock()
		if m.resources[name] != p {
			// Another one took its place, and may end before it.
			here := slices.Contains(m.spare[name], p)
			if here && err == nil {
				p.tell(list.Devices)
			}
			if err != nil {
				m.spare[name] = slices.DeleteFunc(m.spare[name], func(o *pool) bool { return o == p })
			}
			m.mu.Unlock()
			if err != nil || !here {
				return err
			}
			continue
		}
		before, now := p.devices, p
		if err == nil {
			p.tell(list.Devices)
		} else if now = m.succeed(name); now == nil {
			now = p
			p.ended, p.devices = time.Now(), map[string]*api.Device{}
			for id, d := range before {
				p.devices[id] = &api.Device{ID: id, Health: api.Unhealthy, Topology: d.Topology}
			}
		}
		changed := err != nil || !same(before, now.devices)
		pods := m.holders(name)
		m.remember(before, now.devices)
		m.mu.Unlock()
		if changed {
			m.cfg.Changed(pods)
		}
		if err != nil {
			return err
		}
	}
}

// tell takes in which devices a plugin has. The caller holds mu.
func (p *pool) tell(list []*api.Device) {
	p.devices, p.told = map[string]*api.Device{}, true
	for _, d := range list {
		p.devices[d.ID] = d
	}
}

// take makes p the plugin of a resource. The one before stays at hand, unless it was
// at the same socket. The caller holds mu.
func (m *Manager) take(name string, p *pool) {
	if old := m.resources[name]; old != nil {
		// The devices are known until the new plugin says otherwise.
		p.devices = old.devices
		if old.ended.IsZero() {
			m.spare[name] = append(m.spare[name], old)
		}
	}
	m.spare[name] = slices.DeleteFunc(m.spare[name], func(o *pool) bool {
		if o.endpoint == p.endpoint {
			o.conn.Close()
		}
		return o.endpoint == p.endpoint
	})
	m.resources[name] = p
}

// succeed makes the newest of the plugins that were there before the one that has
// ended that of a resource; nil when there is none. The caller holds mu.
func (m *Manager) succeed(name string) *pool {
	list := m.spare[name]
	if len(list) == 0 {
		return nil
	}
	next := list[len(list)-1]
	m.spare[name] = list[:len(list)-1]
	if !next.told {
		next.devices = m.resources[name].devices
	}
	m.resources[name] = next
	return next
}
