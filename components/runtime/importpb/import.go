// Package importpb defines the runtime's calls that are not in CRI: importing images from an
// archive, pulling an image with progress, and upgrading the runtime itself. They use well-known protobuf messages, so no code is
// generated.
package importpb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	service = "hyperkube.runtime.v1.Runtime"
	method  = "Import"
	upgrade = "Upgrade"
	pull    = "Pull"
	// chunk is the number of bytes of the archive per message.
	chunk = 256 << 10
)

// Server implements the runtime's calls that are not part of CRI.
type Server interface {
	// ImportImages imports an archive and returns the names of its images, or the IDs of images
	// without a name.
	ImportImages(ctx context.Context, archive io.Reader) ([]string, error)
	// PullWithProgress pulls an image and returns its ID. report receives how many bytes of the total have been
	// downloaded; its calls are not concurrent.
	PullWithProgress(ctx context.Context, ref string, report func(done, total int64)) (id string, err error)
	// Upgrade makes the process execute another program in its place. argv[0] is its absolute path.
	// Upgrade returns before the execution.
	Upgrade(ctx context.Context, argv []string) error
}

// Register makes a gRPC server serve the calls by calling the methods of s.
func Register(registrar grpc.ServiceRegistrar, s Server) {
	registrar.RegisterService(&grpc.ServiceDesc{
		ServiceName: service,
		HandlerType: (*Server)(nil),
		Methods: []grpc.MethodDesc{{
			MethodName: upgrade,
			Handler: func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				var list structpb.ListValue
				if err := decode(&list); err != nil {
					return nil, err
				}
				var argv []string
				for _, v := range list.GetValues() {
					argv = append(argv, v.GetStringValue())
				}
				return &emptypb.Empty{}, srv.(Server).Upgrade(ctx, argv)
			},
		}},
		Streams: []grpc.StreamDesc{{
			StreamName: method, ClientStreams: true, ServerStreams: true,
			Handler: func(srv any, stream grpc.ServerStream) error {
				names, err := srv.(Server).ImportImages(stream.Context(), &reader{stream: stream})
				if err != nil {
					return err
				}
				for _, name := range names {
					if err := stream.SendMsg(wrapperspb.String(name)); err != nil {
						return err
					}
				}
				return nil
			},
		}, {
			StreamName: pull, ServerStreams: true,
			Handler: func(srv any, stream grpc.ServerStream) error { return servePull(srv.(Server), stream) },
		}},
	}, s)
}

// reportInterval is the minimum time between two reports of the progress of a pull.
const reportInterval = 100 * time.Millisecond

// servePull serves a Pull stream: the client sends the reference of an image. The server sends lists of two numbers, the
// downloaded and the total bytes, and finally a list with the ID of the image.
func servePull(s Server, stream grpc.ServerStream) error {
	var ref wrapperspb.StringValue
	if err := stream.RecvMsg(&ref); err != nil {
		return err
	}
	var last time.Time
	id, err := s.PullWithProgress(stream.Context(), ref.GetValue(), func(done, total int64) {
		if time.Since(last) < reportInterval && done < total {
			return
		}
		last = time.Now()
		// The pull returns the error of a connection that fails, because its context is canceled.
		_ = stream.SendMsg(&structpb.ListValue{Values: []*structpb.Value{structpb.NewNumberValue(float64(done)), structpb.NewNumberValue(float64(total))}})
	})
	if err != nil {
		return err
	}
	return stream.SendMsg(&structpb.ListValue{Values: []*structpb.Value{structpb.NewStringValue(id)}})
}

// Pull pulls an image over conn, a connection to the runtime's socket, and returns its ID. report receives how many
// bytes of the total have been downloaded. Runtimes without this call return an error with the code Unimplemented.
func Pull(ctx context.Context, conn grpc.ClientConnInterface, ref string, report func(done, total int64)) (id string, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/"+service+"/"+pull)
	if err != nil {
		return "", err
	}
	if err := stream.SendMsg(wrapperspb.String(ref)); err != nil && !errors.Is(err, io.EOF) { // after io.EOF, RecvMsg returns the error
		return "", err
	}
	if err := stream.CloseSend(); err != nil {
		return "", err
	}
	for {
		var m structpb.ListValue
		if err := stream.RecvMsg(&m); err != nil {
			return "", err
		}
		switch v := m.GetValues(); len(v) {
		case 1:
			return v[0].GetStringValue(), nil
		case 2:
			report(int64(v[0].GetNumberValue()), int64(v[1].GetNumberValue()))
		}
	}
}

// reader reads the archive from the messages of an Import stream.
type reader struct {
	stream interface{ RecvMsg(any) error }
	rest   []byte
}

func (r *reader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		var m wrapperspb.BytesValue
		if err := r.stream.RecvMsg(&m); err != nil {
			return 0, err // io.EOF at the end
		}
		r.rest = m.GetValue()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// Import sends an image archive to the runtime over conn, a connection to the runtime's socket. It returns the names of
// the imported images, or the IDs of images without a name. After an error, some images may have been imported.
func Import(ctx context.Context, conn grpc.ClientConnInterface, archive io.Reader) ([]string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/"+service+"/"+method)
	if err != nil {
		return nil, fmt.Errorf("importing images: %w", err)
	}
	buf := make([]byte, chunk)
	for {
		n, err := io.ReadFull(archive, buf)
		if n > 0 {
			if err := stream.SendMsg(wrapperspb.Bytes(buf[:n])); err != nil {
				// RecvMsg returns the error of the server.
				break
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading image archive: %w", err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		return nil, fmt.Errorf("importing images: %w", err)
	}
	var names []string
	for {
		var name wrapperspb.StringValue
		err := stream.RecvMsg(&name)
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return names, fmt.Errorf("importing images: %w", err)
		}
		names = append(names, name.GetValue())
	}
}

// Upgrade asks the runtime to execute another program in its process, which keeps its process ID and stays the parent
// of every container. argv is the command; argv[0] must be an absolute path. Upgrade returns before the execution; then
// the socket is unavailable for a short time.
func Upgrade(ctx context.Context, conn grpc.ClientConnInterface, argv []string) error {
	list := &structpb.ListValue{}
	for _, arg := range argv {
		list.Values = append(list.Values, structpb.NewStringValue(arg))
	}
	if err := conn.Invoke(ctx, "/"+service+"/"+upgrade, list, &emptypb.Empty{}); err != nil {
		return fmt.Errorf("upgrading the container runtime: %w", err)
	}
	return nil
}
