// Command floor is the smallest useful external processor in Go: it pins every request to one endpoint.
//
// It reads no body and decides nothing, so its cost is that of the exchange itself in a compiled language.
package main

import (
	"errors"
	"flag"
	"io"
	"log"
	"net"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

const destination = "x-gateway-destination-endpoint"

type server struct {
	extproc.UnimplementedExternalProcessorServer
	pin string
}

// Process answers one HTTP request: headers are passed on, the body's reply carries the pin.
func (s *server) Process(stream extproc.ExternalProcessor_ProcessServer) error {
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) || status.Code(err) == codes.Canceled {
			return nil
		}
		if err != nil {
			return err
		}
		reply := &extproc.ProcessingResponse{}
		switch message.Request.(type) {
		case *extproc.ProcessingRequest_RequestHeaders:
			reply.Response = &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{}}
		case *extproc.ProcessingRequest_RequestBody:
			reply = pinned(s.pin)
		case *extproc.ProcessingRequest_ResponseHeaders:
			reply.Response = &extproc.ProcessingResponse_ResponseHeaders{ResponseHeaders: &extproc.HeadersResponse{}}
		case *extproc.ProcessingRequest_ResponseTrailers:
			reply.Response = &extproc.ProcessingResponse_ResponseTrailers{ResponseTrailers: &extproc.TrailersResponse{}}
		default:
			return status.Errorf(codes.Unimplemented, "unexpected message %T", message.Request)
		}
		if err := stream.Send(reply); err != nil {
			return err
		}
	}
}

// pinned is the reply to a body: the endpoint as dynamic metadata and as a header.
func pinned(endpoint string) *extproc.ProcessingResponse {
	namespace := &structpb.Struct{Fields: map[string]*structpb.Value{destination: structpb.NewStringValue(endpoint)}}
	return &extproc.ProcessingResponse{
		Response: &extproc.ProcessingResponse_RequestBody{RequestBody: &extproc.BodyResponse{
			Response: &extproc.CommonResponse{HeaderMutation: &extproc.HeaderMutation{
				SetHeaders: []*core.HeaderValueOption{{
					Header:       &core.HeaderValue{Key: destination, RawValue: []byte(endpoint)},
					AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
				}},
			}},
		}},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{"envoy.lb": structpb.NewStructValue(namespace)}},
	}
}

func main() {
	listen := flag.String("listen", "127.0.0.1:0", "address to serve gRPC on")
	pin := flag.String("pin", "", "endpoint that every request is pinned to, ip:port")
	flag.Parse()
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	serve := grpc.NewServer(grpc.MaxRecvMsgSize(32 << 20))
	extproc.RegisterExternalProcessorServer(serve, &server{pin: *pin})
	log.Fatal(serve.Serve(listener))
}
