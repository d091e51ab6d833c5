// Package csi uses volumes of CSI drivers: it takes in the drivers that register
// with the node, tells the API of them, and has them stage and publish volumes
// for pods and take that back. What is staged and published is kept in files
// beside the mounts, written before a driver is called, so that a kubelet that
// was killed knows what to take back.
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
	"hyperkube/internal/layout"
)

// callFor bounds one call of a driver, as upstream does.
const callFor = 2 * time.Minute

// driver is a driver that is registered. It is not changed once it is shared.
type driver struct {
	plugin pluginwatch.Plugin
	conn   *grpc.ClientConn
	node   csipb.NodeClient
	info   *csipb.NodeGetInfoResponse
	can    map[csipb.NodeServiceCapability_RPC_Type]bool
	// stop ends what follows the driver's object in the API, and followed is closed
	// when that has ended; both are set once it is registered.
	stop     context.CancelFunc
	followed chan struct{}
}

// close ends what is done for a driver that was registered.
func (d *driver) close() {
	d.stop()
	d.conn.Close()
	<-d.followed
}

func dial(p pluginwatch.Plugin, m *telemetry.Metrics) (*driver, error) {
	conn, err := pluginwatch.Dial(p.Endpoint,
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			tellPaths(p.Alias, req)
			began := time.Now()
			err := call(ctx, method, req, reply, conn, opts...)
			m.Called(p.Name, method, time.Since(began), err)
			return err
		}))
	if err != nil {
		return nil, fmt.Errorf("connecting to CSI driver %s: %w", p.Name, err)
	}
	return &driver{plugin: p, conn: conn, node: csipb.NewNodeClient(conn)}, nil
}

// tellPaths has a request name paths as the driver knows them.
func tellPaths(alias layout.Alias, req any) {
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
		*p = alias.Tell(*p)
	}
}

// ask asks the driver for the node's name and what it can do.
func (d *driver) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callFor)
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
	d.can = map[csipb.NodeServiceCapability_RPC_Type]bool{}
	for _, c := range resp.Capabilities {
		d.can[c.GetRpc().GetType()] = true
	}
	return nil
}

func (d *driver) stages() bool { return d.can[csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME] }
func (d *driver) expands() bool {
	return d.can[csipb.NodeServiceCapability_RPC_EXPAND_VOLUME]
}

// givesGroup: the driver itself gives volumes to a pod's group.
func (d *driver) givesGroup() bool {
	return d.can[csipb.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP]
}

// final tells whether a call has failed for good; otherwise the driver may still
// be at it, or have done it.
func final(err error) bool {
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

// checkPlugin refuses what no driver may be.
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
