package devicemanager

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

	"hyperkube/components/kubelet/grpcsocket"
	"hyperkube/components/kubelet/pluginwatch"
)

// Run accepts registrations of device plugins on the socket kubelet.sock until ctx is done. It returns an
// error if the socket cannot be opened.
func (m *Manager) Run(ctx context.Context) error {
	var wait sync.WaitGroup
	defer wait.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s := grpc.NewServer()
	api.RegisterRegistrationServer(s, &registration{m: m, ctx: func() context.Context { return ctx }, wait: &wait})
	// Plugins register again when the socket is recreated.
	return grpcsocket.Serve(ctx, filepath.Join(m.cfg.Dir, "kubelet.sock"), "device plugins", s)
}

// registration is the gRPC service that device plugins call to register.
type registration struct {
	api.UnimplementedRegistrationServer
	m    *Manager
	ctx  func() context.Context // done when Run returns
	wait *sync.WaitGroup
}

// Register connects to a device plugin and starts to watch its devices. It returns an error to the plugin if
// its API version, resource name or socket name is not valid, or if the plugin does not respond. It implements
// api.RegistrationServer.
func (r *registration) Register(ctx context.Context, in *api.RegisterRequest) (*api.Empty, error) {
	r.m.cfg.Metrics.PluginRegistered(in.ResourceName)
	if !slices.Contains(api.SupportedVersions[:], in.Version) {
		return nil, fmt.Errorf("requested API version %q is not supported by kubelet. Supported version is %q", in.Version, api.SupportedVersions)
	}
	if err := validateResourceName(in.ResourceName); err != nil {
		return nil, err
	}
	if in.Endpoint != filepath.Base(in.Endpoint) {
		return nil, fmt.Errorf("endpoint %q is not a file name", in.Endpoint)
	}
	p, err := r.m.connect(ctx, in)
	if err != nil {
		return nil, err
	}
	r.wait.Go(func() {
		if err := r.m.watch(r.ctx(), in, p); err != nil && r.ctx().Err() == nil {
			r.m.cfg.Log.Warn("device plugin disconnected; unless another instance of the plugin is registered, its devices are unhealthy and not allocated until it registers again", "resource", in.ResourceName, "err", err)
		}
	})
	return &api.Empty{}, nil
}

// validateResourceName returns an error if name is not a valid name of an extended resource.
func validateResourceName(name string) error {
	domain, _, ok := strings.Cut(name, "/")
	if !ok || domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") || strings.HasPrefix(name, v1.DefaultResourceRequestsPrefix) ||
		len(validation.IsQualifiedName(v1.DefaultResourceRequestsPrefix+name)) > 0 {
		return fmt.Errorf("the ResourceName %q is invalid", name)
	}
	return nil
}

// connect connects to a device plugin and gets its options. A plugin that does not respond within 10 seconds is
// an error, which fails the registration.
func (m *Manager) connect(ctx context.Context, in *api.RegisterRequest) (*registeredPlugin, error) {
	conn, err := pluginwatch.Dial(filepath.Join(m.cfg.Dir, in.Endpoint))
	if err != nil {
		return nil, err
	}
	p := &registeredPlugin{client: api.NewDevicePluginClient(conn), conn: conn, devices: map[string]*api.Device{}, endpoint: in.Endpoint}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if p.options, err = p.client.GetDevicePluginOptions(ctx, &api.Empty{}, grpc.WaitForReady(true)); err != nil {
		conn.Close()
		return nil, fmt.Errorf("failed to get device plugin options: %w", err)
	}
	return p, nil
}

// watch makes the plugin p the active one of its resource, and stores the devices that it reports, until it
// disconnects or ctx is done. Then an earlier plugin that still runs takes over, otherwise the devices become
// unhealthy. It returns why the connection has ended.
func (m *Manager) watch(ctx context.Context, in *api.RegisterRequest, p *registeredPlugin) error {
	defer p.conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := p.client.ListAndWatch(ctx, &api.Empty{})
	if err != nil {
		return err
	}
	name := in.ResourceName
	m.mu.Lock()
	m.setActive(name, p)
	m.mu.Unlock()
	m.cfg.Log.Info("device plugin registered, its devices can be allocated", "resource", name)
	for {
		list, err := stream.Recv()
		m.mu.Lock()
		if m.resources[name] != p {
			// A newer plugin has registered. This plugin may still outlive it.
			here := slices.Contains(m.superseded[name], p)
			if here && err == nil {
				p.setDevices(list.Devices)
			}
			if err != nil {
				m.superseded[name] = slices.DeleteFunc(m.superseded[name], func(o *registeredPlugin) bool { return o == p })
			}
			m.mu.Unlock()
			if err != nil || !here {
				return err
			}
			continue
		}
		before, now := p.devices, p
		if err == nil {
			p.setDevices(list.Devices)
		} else if now = m.failOver(name); now == nil {
			now = p
			p.stopped, p.devices = time.Now(), map[string]*api.Device{}
			for id, d := range before {
				p.devices[id] = &api.Device{ID: id, Health: api.Unhealthy, Topology: d.Topology}
			}
		}
		changed := err != nil || !sameDevices(before, now.devices)
		pods := m.holders(name)
		m.saveIfChanged(before, now.devices)
		m.mu.Unlock()
		if changed {
			m.cfg.Changed(pods)
		}
		if err != nil {
			return err
		}
	}
}

// setDevices replaces the devices of the plugin by those that it has reported. The caller must hold the
// Manager's mu.
func (p *registeredPlugin) setDevices(list []*api.Device) {
	p.devices, p.reported = map[string]*api.Device{}, true
	for _, d := range list {
		p.devices[d.ID] = d
	}
}

// setActive makes p the active device plugin of an extended resource. p starts with the devices of the
// previous plugin. If that plugin is still running and uses another socket, it is kept in superseded, so that
// it can become active again when p stops. The caller must hold mu.
func (m *Manager) setActive(name string, p *registeredPlugin) {
	if old := m.resources[name]; old != nil {
		// Keep the devices until the new plugin reports its own.
		p.devices = old.devices
		if old.stopped.IsZero() {
			m.superseded[name] = append(m.superseded[name], old)
		}
	}
	m.superseded[name] = slices.DeleteFunc(m.superseded[name], func(o *registeredPlugin) bool {
		if o.endpoint == p.endpoint {
			o.conn.Close()
		}
		return o.endpoint == p.endpoint
	})
	m.resources[name] = p
}

// failOver makes the newest superseded plugin the active one of a resource, because the active one has stopped,
// and returns it. If that plugin has not reported its devices yet, it starts with those of the stopped one. It
// returns nil if there is none. The caller must hold mu.
func (m *Manager) failOver(name string) *registeredPlugin {
	list := m.superseded[name]
	if len(list) == 0 {
		return nil
	}
	next := list[len(list)-1]
	m.superseded[name] = list[:len(list)-1]
	if !next.reported {
		next.devices = m.resources[name].devices
	}
	m.resources[name] = next
	return next
}
