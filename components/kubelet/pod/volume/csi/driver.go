// Package csi implements volumes of CSI drivers. It accepts the registration of drivers on the
// node, registers them in the API, and calls them to stage and publish volumes for pods and to undo
// that. The state of staged and published volumes is saved in files beside the mounts before a
// driver is called, so that a restarted kubelet can clean up.
// https://github.com/container-storage-interface/spec/blob/master/spec.md
package csi

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"hyperkube/components/kubelet/pluginwatch"
	"hyperkube/components/kubelet/telemetry"
	"hyperkube/internal/host/layout"
)

// callTimeout is the timeout of a call to a driver, as in upstream.
const callTimeout = 2 * time.Minute

// driver is the connection to a CSI driver that has registered on this node, and what the driver has reported
// about itself. It is immutable once it is shared.
type driver struct {
	plugin       pluginwatch.Plugin
	conn         *grpc.ClientConn
	node         csipb.NodeClient
	info         *csipb.NodeGetInfoResponse
	capabilities map[csipb.NodeServiceCapability_RPC_Type]bool
	// stop stops the watch of the driver's CSIDriver object; watchDone is closed when the watch has stopped.
	// Both are set once the driver is registered.
	stop      context.CancelFunc
	watchDone chan struct{}
}

// close stops the watch of a registered driver's CSIDriver object and closes the connection to the driver.
func (d *driver) close() {
	d.stop()
	d.conn.Close()
	<-d.watchDone
}

// dial returns a driver with a connection to the socket of the registered plugin p. Calls are counted in m,
// and paths in requests are translated. The caller must call queryInfo before using the driver.
func dial(p pluginwatch.Plugin, m *telemetry.Volumes) (*driver, error) {
	conn, err := pluginwatch.Dial(p.Endpoint,
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			translatePaths(p.Alias, req)
			began := time.Now()
			err := call(ctx, method, req, reply, conn, opts...)
			m.DriverCall(p.Name, method, time.Since(began), err)
			return err
		}))
	if err != nil {
		return nil, fmt.Errorf("connecting to CSI driver %s: %w", p.Name, err)
	}
	return &driver{plugin: p, conn: conn, node: csipb.NewNodeClient(conn)}, nil
}

// translatePaths replaces the actual paths in a request by those under which the driver's container sees the
// kubelet's root directory.
func translatePaths(alias layout.Alias, req any) {
	var paths []*string
	switch r := req.(type) {
	case *csipb.NodeStageVolumeRequest:
		paths = []*string{&r.StagingTargetPath}
	case *csipb.NodeUnstageVolumeRequest:
		paths = []*string{&r.StagingTargetPath}
	case *csipb.NodePublishVolumeRequest:
		paths = []*string{&r.StagingTargetPath, &r.TargetPath}
	case *csipb.NodeUnpublishVolumeRequest:
		paths = []*string{&r.TargetPath}
	case *csipb.NodeExpandVolumeRequest:
		paths = []*string{&r.StagingTargetPath, &r.VolumePath}
	case *csipb.NodeGetVolumeStatsRequest:
		paths = []*string{&r.StagingTargetPath, &r.VolumePath}
	}
	for _, p := range paths {
		*p = alias.ToAdvertised(*p)
	}
}

// queryInfo queries the driver for its ID of the node and its capabilities. A driver without a node ID is an
// error.
func (d *driver) queryInfo(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	info, err := d.node.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("error getting NodeGetInfo: %w", err)
	}
	if info.NodeId == "" {
		return errors.New("the driver returned no node ID")
	}
	d.info = info
	resp, err := d.node.NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
	if err != nil {
		return fmt.Errorf("error getting the driver's capabilities: %w", err)
	}
	d.capabilities = map[csipb.NodeServiceCapability_RPC_Type]bool{}
	for _, c := range resp.Capabilities {
		d.capabilities[c.GetRpc().GetType()] = true
	}
	return nil
}

// stages reports whether volumes of the driver must be staged, once per node, before they are published for
// pods.
func (d *driver) stages() bool {
	return d.capabilities[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME]
}

// expands reports whether the driver can expand volumes on the node.
func (d *driver) expands() bool {
	return d.capabilities[csipb.NodeServiceCapability_RPC_EXPAND_VOLUME]
}

// mountsWithGroup reports whether the driver itself applies the pod's fsGroup to volumes.
func (d *driver) mountsWithGroup() bool {
	return d.capabilities[csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP]
}

// isFinalError reports whether err, which is not nil, means that the driver has rejected a call. Otherwise,
// that is, after a timeout and similar gRPC statuses, the driver may still be working on the call or may have
// completed it. An error without a gRPC status is final.
func isFinalError(err error) bool {
	s, ok := status.FromError(err)
	if !ok {
		return true
	}
	switch s.Code() {
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	}
	return true
}

// checkPlugin returns an error if a plugin that registers as a CSI driver has no name or does not support
// version 1 of CSI.
func checkPlugin(p pluginwatch.Plugin) error {
	if p.Name == "" {
		return errors.New("a CSI driver must have a name")
	}
	if len(p.Versions) == 0 {
		return fmt.Errorf("failed to validate CSI plugin %s at endpoint %s: it supports no version", p.Name, p.Endpoint)
	}
	if !slices.ContainsFunc(p.Versions, func(v string) bool {
		v = strings.TrimPrefix(v, "v")
		return v == "1" || strings.HasPrefix(v, "1.")
	}) {
		return fmt.Errorf("failed to validate CSI plugin %s at endpoint %s: supported versions %s are not compatible with kubelet", p.Name, p.Endpoint, strings.Join(p.Versions, ", "))
	}
	return nil
}
